// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's trace events, and the stacks of such events: enabled around a call, and parsed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::cases::Tmpfs;
use crate::kernel;

/// Size of a CPU's buffer in kilobytes; larger than the events of any call here.
const BUFFER_KB: &str = "8192";
const MARK: &str = "tracing_mark_write";

/// The tracing directory, mounted if necessary.
pub struct Tracing {
    dir: PathBuf,
    _mount: Option<Tmpfs>,
}

/// An event, or the mark at the start of a traced call.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub seconds: f64,
    pub name: String,
    /// The text after the name.
    pub fields: String,
}

impl Event {
    /// Returns the text of the field `name=text`.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields
            .split([' ', ','])
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    fn parse(line: &str) -> Option<Self> {
        // "task-1 [000] d..1. 12.345678: name: fields". The time is the last word before the first
        // colon, because a task's name may have spaces. A name with a colon is not parsed.
        let (head, rest) = line.split_once(": ")?;
        let seconds = head.rsplit(' ').next()?.parse().ok()?;
        let (name, fields) = rest.split_once(':')?;
        Some(Self {
            seconds,
            name: name.to_owned(),
            fields: fields.trim().to_owned(),
        })
    }
}

impl Tracing {
    pub fn new() -> Result<Self> {
        let usual = Path::new("/sys/kernel/tracing");
        if usual.join("events").exists() {
            return Ok(Self {
                dir: usual.to_owned(),
                _mount: None,
            });
        }
        let own = Tmpfs::of_type("tracefs")?;
        Ok(Self {
            dir: own.dir().to_owned(),
            _mount: Some(own),
        })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Enables or disables an event, such as `ferry/ferry_batch`, or all events of a group.
    pub fn set(&self, event: &str, on: bool) -> Result<()> {
        let enable = self.dir.join("events").join(event).join("enable");
        kernel::write(enable, if on { "1" } else { "0" })
    }

    fn clear(&self) -> Result<()> {
        fs::write(self.dir.join("trace"), "").context("clearing the trace")
    }

    /// Returns the trace since it was cleared.
    fn text(&self) -> Result<String> {
        kernel::read(self.dir.join("trace"))
    }

    /// Runs `call` with events enabled. Returns the mark before it and the events after that.
    pub fn of(&self, events: &[&str], call: impl FnOnce() -> Result<()>) -> Result<Vec<Event>> {
        kernel::write(self.dir.join("buffer_size_kb"), BUFFER_KB)?;
        kernel::write(self.dir.join("trace_clock"), "mono")?;
        self.clear()?;
        for event in events {
            self.set(event, true)?;
        }
        kernel::write(self.dir.join("trace_marker"), "call")?;
        let result = call();
        for event in events {
            self.set(event, false)?;
        }
        result?;
        let text = self.text()?;
        ensure!(
            !text.contains("LOST"),
            "the trace buffer overflowed and lost events"
        );
        let all = text.lines().filter(|line| !line.starts_with('#'));
        let all: Vec<Event> = all.filter_map(Event::parse).collect();
        let from = all.iter().position(|event| event.name == MARK);
        Ok(all[from.context("the trace has no mark")?..].to_vec())
    }
}

impl Tracing {
    /// Runs `call`. Returns the stack of each event meanwhile for which `condition` is true, as the
    /// kernel's event filters have it. A stack begins with the innermost function.
    pub fn stacks(
        &self,
        event: &str,
        condition: &str,
        call: impl FnOnce() -> Result<()>,
    ) -> Result<Vec<Vec<String>>> {
        let trigger = self.dir.join("events").join(event).join("trigger");
        kernel::write(self.dir.join("buffer_size_kb"), BUFFER_KB)?;
        self.clear()?;
        kernel::write(&trigger, &format!("stacktrace if {condition}"))?;
        let result = call();
        kernel::write(&trigger, "!stacktrace")?;
        result?;
        let text = self.text()?;
        ensure!(
            !text.contains("LOST"),
            "the trace buffer overflowed and lost stacks"
        );
        Ok(stacks_of(&text))
    }
}

/// Returns the stacks in a trace. Each has a line of its own before its functions.
fn stacks_of(text: &str) -> Vec<Vec<String>> {
    let mut stacks = vec![Vec::new()];
    for line in text.lines() {
        match (line.trim().strip_prefix("=> "), stacks.last_mut()) {
            (Some(function), Some(stack)) => stack.push(function.to_owned()),
            _ => stacks.push(Vec::new()),
        }
    }
    stacks.retain(|stack| !stack.is_empty());
    stacks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_apart() {
        let text = "# tracer: nop\n a-1 [0] d..1. 1.5: <stack trace>\n => inner\n => outer\n \
                    b-2 [1] d..1. 1.6: <stack trace>\n => other\n";
        assert_eq!(stacks_of(text), [vec!["inner", "outer"], vec!["other"]]);
    }

    #[test]
    fn lines_are_events() {
        let line =
            "  my: task-12  [001] d..1.    12.500000: set_migration_pte: addr=7f00, pte=1, order=0";
        assert!(
            Event::parse(line).is_none(),
            "no time before the first colon"
        );
        let line =
            "  mover-12  [001] d..1.    12.500000: set_migration_pte: addr=7f00, pte=1, order=0";
        let event = Event::parse(line).unwrap();
        assert_eq!((event.seconds, &*event.name), (12.5, "set_migration_pte"));
        assert_eq!(
            (event.field("addr"), event.field("order")),
            (Some("7f00"), Some("0"))
        );
        assert_eq!(event.field("nothing"), None);
    }
}
