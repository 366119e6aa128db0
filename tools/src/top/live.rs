// SPDX-License-Identifier: GPL-2.0-only
//! The terminal: set up, drawn, read, and restored however the program ends.

use super::{
    rates::Report,
    sample::{Sample, Source},
    view::{self, Screen},
};
use anyhow::{Context as _, Result};
use ratatui::{
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
    DefaultTerminal,
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGSTOP, SIGTERM, SIGTSTP},
    low_level,
};
use std::{
    sync::{
        atomic::{AtomicUsize, Ordering},
        Arc,
    },
    time::{Duration, Instant},
};

/// Interval at which signals and keys are checked.
const POLL: Duration = Duration::from_millis(100);
const INTERVALS: [f64; 10] = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0];
/// Wider than any terminal.
const HISTORY: usize = 1000;

/// Shows `source` until the user or a signal ends it.
pub fn show(source: &Source, interval: f64, page_size: u64) -> Result<()> {
    let mut app = App::new(source.sample()?, interval, page_size);
    let signals = Signals::catch()?;
    let mut terminal = take()?;
    let ended = run(&mut app, source, &mut terminal, &signals);
    give_back(&mut terminal);
    if let Some(signal) = ended? {
        // The sender of the signal expects its default exit status.
        low_level::emulate_default_handler(signal)?;
    }
    Ok(())
}

/// Returns the signal that ended the display, if one did.
fn run(
    app: &mut App,
    source: &Source,
    terminal: &mut DefaultTerminal,
    signals: &Signals,
) -> Result<Option<i32>> {
    loop {
        terminal.draw(|frame| view::draw(frame, &app.screen()))?;
        if event::poll(app.wait(Instant::now()))? {
            let action = match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => app.key(key),
                // A resize is drawn by the loop; other events are ignored.
                _ => Action::Nothing,
            };
            match action {
                Action::Quit => return Ok(None),
                Action::Stop => stop(terminal)?,
                Action::Resume => app.resume(app.sample(source)?),
                Action::Nothing => (),
            }
        }
        match signals.take() {
            None => (),
            Some(SIGTSTP) => stop(terminal)?,
            signal => return Ok(signal),
        }
        if app.is_due(Instant::now()) {
            app.take(app.sample(source)?);
        }
    }
}

/// Takes the terminal and clears it, because not every one has an alternate screen. A panic
/// restores it too.
fn take() -> Result<DefaultTerminal> {
    let taken = ratatui::try_init().and_then(|mut terminal| {
        terminal.clear()?;
        Ok(terminal)
    });
    if taken.is_err() {
        ratatui::restore();
    }
    taken.context("cannot set up the terminal")
}

/// Restores the terminal. Errors are ignored, because they cannot be shown.
fn give_back(terminal: &mut DefaultTerminal) {
    let _ = terminal.show_cursor();
    ratatui::restore();
}

/// Restores the terminal and stops this process until the shell continues it.
fn stop(terminal: &mut DefaultTerminal) -> Result<()> {
    give_back(terminal);
    low_level::raise(SIGSTOP)?;
    *terminal = take()?;
    Ok(())
}

/// The last signal received.
struct Signals(Arc<AtomicUsize>);

impl Signals {
    fn catch() -> Result<Self> {
        let last = Arc::new(AtomicUsize::new(0));
        for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP] {
            signal_hook::flag::register_usize(signal, last.clone(), signal as usize)?;
        }
        Ok(Signals(last))
    }

    fn take(&self) -> Option<i32> {
        let signal = self.0.swap(0, Ordering::Relaxed) as i32;
        (signal != 0).then_some(signal)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Action {
    Nothing,
    Quit,
    /// Suspend, until the shell continues the process.
    Stop,
    /// Continue after a pause.
    Resume,
}

struct App {
    last: Sample,
    /// Start of the totals and its time; `None` counts from boot.
    base: Option<Sample>,
    report: Report,
    history: Vec<f64>,
    interval: f64,
    page_size: u64,
    paused: bool,
    others: bool,
    since: String,
}

impl App {
    fn new(first: Sample, interval: f64, page_size: u64) -> Self {
        App {
            report: Report::new(&first, &first, None, page_size),
            last: first,
            base: None,
            history: Vec::new(),
            interval,
            page_size,
            paused: false,
            others: false,
            since: "since boot".to_owned(),
        }
    }

    fn screen(&self) -> Screen<'_> {
        Screen {
            report: &self.report,
            history: &self.history,
            interval: self.interval,
            paused: self.paused,
            others: self.others,
            since: &self.since,
        }
    }

    /// Reads what the page shows.
    fn sample(&self, source: &Source) -> Result<Sample> {
        match self.others {
            true => source.sample_with_cgroups(),
            false => source.sample(),
        }
    }

    fn next(&self) -> Instant {
        self.last.at + Duration::from_secs_f64(self.interval)
    }

    fn is_due(&self, now: Instant) -> bool {
        !self.paused && now >= self.next()
    }

    /// Returns the time until the next sample or check for signals.
    fn wait(&self, now: Instant) -> Duration {
        if self.paused {
            return POLL;
        }
        self.next().saturating_duration_since(now).min(POLL)
    }

    /// Ends an interval with `sample`.
    fn take(&mut self, sample: Sample) {
        self.report = Report::new(&self.last, &sample, self.base.as_ref(), self.page_size);
        if self.history.len() == HISTORY {
            self.history.remove(0);
        }
        self.history.push(self.report.gbps("pgmigrate_success"));
        if let Some(base) = &self.base {
            let seconds = sample.at.duration_since(base.at).as_secs();
            self.since = format!("of {seconds} s");
        }
        self.last = sample;
    }

    /// Starts a new interval: changes during the pause belong to none.
    fn resume(&mut self, sample: Sample) {
        self.paused = false;
        self.last = sample;
    }

    fn key(&mut self, key: KeyEvent) -> Action {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return Action::Quit,
            KeyCode::Char('z') if control => return Action::Stop,
            _ if control => (),
            KeyCode::Char('q') | KeyCode::Esc => return Action::Quit,
            KeyCode::Char('p') if self.paused => return Action::Resume,
            KeyCode::Char('p') => self.paused = true,
            KeyCode::Char('o') => self.others = !self.others,
            KeyCode::Char('r') => self.reset(),
            KeyCode::Char('+' | '=') => {
                let longer = INTERVALS.iter().find(|&&i| i > self.interval);
                self.interval = longer.copied().unwrap_or(self.interval);
            }
            KeyCode::Char('-') => {
                let shorter = INTERVALS.iter().rev().find(|&&i| i < self.interval);
                self.interval = shorter.copied().unwrap_or(self.interval);
            }
            _ => (),
        }
        Action::Nothing
    }

    /// Restarts the totals from the values shown now.
    fn reset(&mut self) {
        self.base = Some(self.last.clone());
        self.since = "of 0 s".to_owned();
        let report = &mut self.report;
        let parts = report
            .parts
            .values_mut()
            .flat_map(|counts| counts.values_mut());
        let counts = report
            .counters
            .values_mut()
            .chain(report.helped.values_mut());
        for count in counts.chain(report.cgroups.values_mut()).chain(parts) {
            count.total = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::sample::fixture, *};

    fn app() -> App {
        App::new(fixture::sample(&fixture::ferry()), 1.0, 4096)
    }

    fn press(app: &mut App, code: KeyCode) -> Action {
        app.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    /// Returns a sample `seconds` after the last, with `batches` more batches.
    fn later(app: &App, seconds: u64, batches: u64) -> Sample {
        let mut sample = app.last.clone();
        sample.at += Duration::from_secs(seconds);
        *sample.counters.get_mut("batches").unwrap() += batches;
        sample
    }

    #[test]
    fn keys_that_quit() {
        for code in [KeyCode::Esc, KeyCode::Char('q')] {
            assert_eq!(press(&mut app(), code), Action::Quit);
        }
        let control = |c| app().key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL));
        assert_eq!(control('c'), Action::Quit);
        assert_eq!(control('z'), Action::Stop);
        assert_eq!(control('q'), Action::Nothing);
        assert_eq!(press(&mut app(), KeyCode::Char('x')), Action::Nothing);
    }

    #[test]
    fn interval_has_ends() {
        let mut app = app();
        app.interval = 0.7;
        press(&mut app, KeyCode::Char('-'));
        assert_eq!(app.interval, 0.5);
        for _ in 0..20 {
            press(&mut app, KeyCode::Char('-'));
        }
        assert_eq!(app.interval, 0.1);
        for _ in 0..20 {
            press(&mut app, KeyCode::Char('+'));
        }
        assert_eq!(app.interval, 300.0);
        app.interval = 3600.0;
        press(&mut app, KeyCode::Char('+'));
        assert_eq!(app.interval, 3600.0);
    }

    #[test]
    fn pause_is_no_part_of_an_interval() {
        let mut app = app();
        let at = app.last.at;
        let due = |app: &App| app.is_due(at + Duration::from_secs(1));
        assert!(due(&app) && !app.is_due(at));
        press(&mut app, KeyCode::Char('p'));
        assert!(!due(&app));
        assert_eq!(press(&mut app, KeyCode::Char('p')), Action::Resume);
        app.resume(later(&app, 50, 7));
        app.take(later(&app, 1, 3));
        assert_eq!(app.report.counter("batches").per_s, 3.0);
    }

    #[test]
    fn totals_are_set_back() {
        let mut app = app();
        app.take(later(&app, 1, 3));
        assert_eq!(app.report.counter("batches").total, 15);
        press(&mut app, KeyCode::Char('r'));
        assert_eq!(app.report.counter("batches").total, 0);
        app.take(later(&app, 2, 5));
        assert_eq!(app.report.counter("batches").total, 5);
        assert_eq!(app.since, "of 2 s");
    }

    #[test]
    fn history_is_bounded() {
        let mut app = app();
        for _ in 0..HISTORY + 5 {
            app.take(later(&app, 1, 0));
        }
        assert_eq!(app.history.len(), HISTORY);
    }
}
