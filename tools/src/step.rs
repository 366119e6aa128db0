// SPDX-License-Identifier: GPL-2.0-only
//! One long step: a command with its own process group, a log, a time limit and visible progress.

use anyhow::{bail, Context as _, Result};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use nix::{
    sys::signal::{killpg, Signal},
    unistd::Pid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use std::{
    fmt,
    fs::File,
    io::{IsTerminal, Read, Seek, SeekFrom},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc, OnceLock,
    },
    thread::sleep,
    time::{Duration, Instant},
};

const POLL: Duration = Duration::from_millis(100);
/// How long a step may take to end by itself once told to.
const GRACE: Duration = Duration::from_secs(5);
/// Without a terminal, a sign of life this often.
const HEARTBEAT: Duration = Duration::from_secs(60);
const TAIL_LINES: usize = 15;

type StopWhen<'a> = Box<dyn Fn() -> bool + 'a>;

pub struct Step<'a> {
    title: String,
    log: PathBuf,
    timeout: Duration,
    remedy: String,
    quiet: bool,
    /// Whether the step is done whatever the command's exit status.
    any_status: bool,
    stop_when: Option<StopWhen<'a>>,
}

/// A signal asked this program to end.
#[derive(Debug)]
struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted; the next call takes up from the last finished step")
    }
}

impl std::error::Error for Interrupted {}

pub fn was_interrupted(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Interrupted>().is_some()
}

/// Returns a flag that signals set from the first call on. A signal that is ignored stays ignored, as
/// nohup(1) wants.
fn interrupt_flag() -> &'static Arc<AtomicBool> {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    FLAG.get_or_init(|| {
        let flag = Arc::new(AtomicBool::new(false));
        let ignored = ignored_signals();
        for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
            if ignored & (1 << (signal - 1)) != 0 {
                continue;
            }
            // Registering fails only for a bad signal number.
            if [SIGINT, SIGQUIT].contains(&signal) {
                // A second Ctrl-C ends the program at once. The others come twice by themselves: from the
                // terminal and the shell, or from timeout(1).
                let _ = signal_hook::flag::register_conditional_shutdown(signal, 130, flag.clone());
            }
            let _ = signal_hook::flag::register(signal, flag.clone());
        }
        flag
    })
}

/// Returns the set of signals that this program ignores, signal N as bit N - 1.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// How a step's command ended.
enum End {
    Exited(ExitStatus),
    TimedOut,
    Stopped,
}

impl<'a> Step<'a> {
    pub fn new(title: impl Into<String>, log: PathBuf) -> Self {
        Step {
            title: title.into(),
            log,
            timeout: Duration::from_secs(3600),
            remedy: String::new(),
            quiet: false,
            any_status: false,
            stop_when: None,
        }
    }

    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// What the user should do if this step fails.
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// No line on the screen unless it fails.
    pub fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// Stops the command, which is an error, once this holds.
    pub fn stop_when(mut self, unwanted: impl Fn() -> bool + 'a) -> Self {
        self.stop_when = Some(Box::new(unwanted));
        self
    }

    /// Runs the command to its end; a failure names the step, its log and the remedy.
    pub fn run(self, command: &mut Command) -> Result<()> {
        let status = self.exit(command)?;
        if !status.success() {
            bail!(self.failure(&format!("failed ({status})")));
        }
        Ok(())
    }

    /// Runs the command to its end, whatever its exit status; only to be stopped is an error.
    pub fn run_any(mut self, command: &mut Command) -> Result<ExitStatus> {
        self.any_status = true;
        self.exit(command)
    }

    fn exit(&self, command: &mut Command) -> Result<ExitStatus> {
        match self.wait(command)? {
            End::Exited(status) => Ok(status),
            End::TimedOut => bail!(self.failure(&self.limit())),
            End::Stopped => bail!(self.failure("stopped: something it works with failed")),
        }
    }

    fn limit(&self) -> String {
        format!(
            "did not end within {} s and was stopped",
            self.timeout.as_secs()
        )
    }

    fn failure(&self, what: &str) -> String {
        let mut text = format!("{}: {what}\n", self.title);
        for line in tail(&self.log, TAIL_LINES) {
            text.push_str("  | ");
            text.push_str(&line);
            text.push('\n');
        }
        text.push_str(&format!("  log: {}", self.log.display()));
        if !self.remedy.is_empty() {
            text.push_str(&format!("\n  what to do: {}", self.remedy));
        }
        text
    }

    fn wait(&self, command: &mut Command) -> Result<End> {
        let interrupted = interrupt_flag();
        if let Some(dir) = self.log.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let log = File::create(&self.log)
            .with_context(|| format!("{}: cannot write its log", self.title))?;
        let mut reader = File::open(&self.log)?;
        let program = command.get_program().to_owned();
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| {
                format!(
                    "{}: cannot start {}; install it if it is missing",
                    self.title,
                    program.to_string_lossy()
                )
            })?;
        let mut running = Running(child);
        let mut progress = Progress::start(&self.title, self.quiet);
        let start = Instant::now();
        let mut pending = Vec::new();
        let end: Result<End> = loop {
            let ended = running.0.try_wait()?;
            read_lines(&mut reader, &mut pending, &mut progress)?;
            if let Some(status) = ended {
                break Ok(End::Exited(status));
            }
            if interrupted.load(Ordering::Relaxed) {
                break Err(Interrupted.into());
            }
            if start.elapsed() > self.timeout {
                break Ok(End::TimedOut);
            }
            if self.stop_when.as_ref().is_some_and(|unwanted| unwanted()) {
                break Ok(End::Stopped);
            }
            sleep(POLL);
        };
        drop(running);
        progress
            .finish(matches!(&end, Ok(End::Exited(status)) if self.any_status || status.success()));
        end
    }
}

fn read_lines(reader: &mut File, pending: &mut Vec<u8>, progress: &mut Progress) -> Result<()> {
    reader.read_to_end(pending)?;
    while let Some(end) = pending.iter().position(|&byte| byte == b'\n') {
        let line: Vec<u8> = pending.drain(..=end).collect();
        progress.line(String::from_utf8_lossy(&line).trim_end());
    }
    Ok(())
}

/// A step's command. If it still runs when this is dropped, by an error or a panic too, it is stopped with
/// everything it started.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let ended = |child: &mut Child| matches!(child.try_wait(), Ok(Some(_)));
        if ended(&mut self.0) {
            return;
        }
        let group = Pid::from_raw(self.0.id() as i32);
        let deadline = Instant::now() + GRACE;
        // The group may be gone already; then there is nothing to stop.
        let _ = killpg(group, Signal::SIGTERM);
        while Instant::now() < deadline && !ended(&mut self.0) {
            sleep(POLL);
        }
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

/// The last lines of a log that may be large.
pub fn tail(log: &Path, lines: usize) -> Vec<String> {
    let mut text = Vec::new();
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(16 << 10)))?;
        file.read_to_end(&mut text)?;
        Ok(text)
    };
    let text = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    all[all.len().saturating_sub(lines)..]
        .iter()
        .map(|line| line.trim_end().to_owned())
        .collect()
}

/// Steps may run side by side; their spinners then stand one below the other.
fn bars() -> &'static MultiProgress {
    static BARS: OnceLock<MultiProgress> = OnceLock::new();
    BARS.get_or_init(MultiProgress::new)
}

/// A spinner with the last line of the log on a terminal, plain lines elsewhere.
struct Progress {
    title: String,
    bar: Option<ProgressBar>,
    plain: bool,
    start: Instant,
    beat: Instant,
    lines: u64,
}

impl Progress {
    fn start(title: &str, quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = (terminal && !quiet).then(|| {
            let bar = bars().add(ProgressBar::new_spinner()).with_style(
                ProgressStyle::with_template(
                    "{spinner} {prefix} [{elapsed_precise}] {wide_msg:.dim}",
                )
                .unwrap_or_else(|_| ProgressStyle::default_spinner()),
            );
            bar.set_prefix(title.to_owned());
            bar.enable_steady_tick(POLL);
            bar
        });
        let plain = !terminal && !quiet;
        if plain {
            eprintln!("==> {title}");
        }
        Progress {
            title: title.to_owned(),
            bar,
            plain,
            start: Instant::now(),
            beat: Instant::now(),
            lines: 0,
        }
    }

    fn line(&mut self, line: &str) {
        if line.is_empty() {
            return;
        }
        self.lines += 1;
        if let Some(bar) = &self.bar {
            let clean: String = line.chars().filter(|c| !c.is_control()).collect();
            bar.set_message(format!("{} {}", self.lines, clean.trim()));
        } else if self.plain && self.beat.elapsed() > HEARTBEAT {
            self.beat = Instant::now();
            eprintln!(
                "    {}: {} s, line {}: {}",
                self.title,
                self.start.elapsed().as_secs(),
                self.lines,
                line.trim()
            );
        }
    }

    fn finish(&mut self, good: bool) {
        let word = if good { "done" } else { "stopped" };
        let text = format!(
            "{}: {word}, {} s",
            self.title,
            self.start.elapsed().as_secs()
        );
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
            bars().remove(&bar);
            bars().suspend(|| eprintln!("==> {text}"));
        } else if self.plain {
            eprintln!("    {text}");
        }
    }
}

/// The output of a short command that is expected to succeed.
pub fn output(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}");
    let out = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {shown}; install it if it is missing"))?;
    if !out.status.success() {
        bail!(
            "{shown} failed ({}): {}",
            out.status,
            String::from_utf8_lossy(&out.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{catch_unwind, AssertUnwindSafe};

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn failure_names_step_log_last_lines_and_remedy() {
        let temp = tempfile::tempdir().unwrap();
        let log = temp.path().join("x.log");
        let error = Step::new("a step", log.clone())
            .quiet()
            .remedy("pray")
            .run(&mut shell("echo one; echo two >&2; exit 3"))
            .unwrap_err()
            .to_string();
        for part in ["a step", "| one", "| two", "pray", log.to_str().unwrap()] {
            assert!(error.contains(part), "{part} missing in {error}");
        }
    }

    #[test]
    fn hanging_command_dies_with_all_it_started() {
        let temp = tempfile::tempdir().unwrap();
        let pid = temp.path().join("pid");
        let script = format!("sleep 1000 & echo $! >{}; wait", pid.display());
        let error = Step::new("hang", temp.path().join("h.log"))
            .quiet()
            .timeout(Duration::from_secs(1))
            .run(&mut shell(&script))
            .unwrap_err();
        assert!(error.to_string().contains("did not end within 1 s"));
        assert_gone(&pid);
    }

    /// Waits until a killed process is gone, which takes a moment.
    fn assert_gone(pid_file: &Path) {
        let pid = std::fs::read_to_string(pid_file).unwrap();
        let path = format!("/proc/{}/stat", pid.trim());
        let stat = || std::fs::read_to_string(&path).unwrap_or_default();
        // Gone, or a zombie that waits for init to collect it.
        let is_gone = |stat: &str| stat.is_empty() || stat.contains(") Z ");
        let deadline = Instant::now() + Duration::from_secs(30);
        while !is_gone(&stat()) {
            assert!(Instant::now() < deadline, "{}", stat());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn command_does_not_outlive_a_panic() {
        let temp = tempfile::tempdir().unwrap();
        let pid = temp.path().join("pid");
        let script = format!("echo $$ >{}; exec sleep 1000", pid.display());
        let started = || std::fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n'));
        let step = Step::new("panics", temp.path().join("p.log"))
            .quiet()
            .stop_when(|| {
                assert!(!started(), "as wanted");
                false
            });
        let run = AssertUnwindSafe(|| step.run_any(&mut shell(&script)));
        assert!(catch_unwind(run).is_err());
        assert_gone(&pid);
    }

    #[test]
    fn unwanted_command_is_stopped() {
        let temp = tempfile::tempdir().unwrap();
        let start = Instant::now();
        let error = Step::new("waits", temp.path().join("w.log"))
            .quiet()
            .stop_when(|| start.elapsed() > POLL)
            .run_any(&mut shell("exec sleep 1000"))
            .unwrap_err();
        assert!(error.to_string().contains("waits: stopped"), "{error}");
    }

    #[test]
    fn missing_program_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let error = Step::new("gone", temp.path().join("g.log"))
            .quiet()
            .run(&mut Command::new("no-such-program-here"))
            .unwrap_err();
        assert!(error.to_string().contains("no-such-program-here"));
    }
}
