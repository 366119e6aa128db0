// SPDX-License-Identifier: GPL-2.0-only
//! The screen: draws a report into the available space.

use super::{
    rates::Report,
    sample::Times,
    text,
    words::{self, short, Row as Words},
};
use ratatui::{
    layout::{Alignment, Constraint, Layout, Rect},
    style::{Color, Modifier, Style, Stylize},
    text::{Line, Span},
    widgets::{Bar, BarChart, BarGroup, Block, Paragraph, Row, Sparkline, Table, Wrap},
    Frame,
};

/// With less than this width or height, the screen is a list of lines, the most important first.
const FULL: (u16, u16) = (72, 20);
/// From this height on, helped pages and settings have their own lists.
const TALL: u16 = 34;

/// The content of the screen.
pub struct Screen<'a> {
    pub report: &'a Report,
    /// GB/s of past intervals, the latest last.
    pub history: &'a [f64],
    pub interval: f64,
    pub paused: bool,
    /// Show the other features, cgroups and nodes instead of copies and crews.
    pub others: bool,
    /// The start of the totals.
    pub since: &'a str,
}

pub fn draw(frame: &mut Frame, screen: &Screen) {
    let area = frame.area();
    if area.width < FULL.0 || area.height < FULL.1 {
        let lines = lines(screen);
        return frame.render_widget(Paragraph::new(lines), area);
    }
    if screen.others {
        return others(frame, area, screen);
    }
    let below = if area.height < TALL { 3 } else { 12 };
    let [header, flow, middle, bottom, footer] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(7),
        Constraint::Min(0),
        Constraint::Length(below),
        Constraint::Length(1),
    ])
    .areas(area);
    let halves = |area| Layout::horizontal([Constraint::Min(48), Constraint::Fill(1)]).areas(area);
    frame.render_widget(title(screen), header);
    let [left, right] = halves(flow);
    flows(frame, left, screen.report);
    sparkline(frame, right, screen.history);
    let [left, right] = halves(middle);
    let mut rows = words::left_alone(&screen.report.counters);
    rows.extend(demotion(screen.report));
    counts(frame, left, "not shared (pages)", screen.since, rows);
    let [upper, lower] = Layout::vertical([Constraint::Fill(1); 2]).areas(right);
    for ((name, times), area) in text::times(screen.report).into_iter().zip([upper, lower]) {
        histogram(frame, area, name, times);
    }
    if area.height < TALL {
        let lines = vec![helped_line(screen.report), settings_line(screen.report)];
        frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: true }), bottom);
    } else {
        let [left, right] = halves(bottom);
        let helped = words::named(&screen.report.helped);
        counts(frame, left, "helped (pages)", screen.since, helped);
        settings(frame, right, screen.report);
    }
    keys(frame, footer);
}

fn keys(frame: &mut Frame, area: Rect) {
    let keys = "q quit   o other features   p pause   r totals from now   + - interval";
    frame.render_widget(Paragraph::new(keys.dim()), area);
}

/// Draws the other features, cgroups and nodes.
fn others(frame: &mut Frame, area: Rect, screen: &Screen) {
    let report = screen.report;
    let nodes = report.nodes.len() as u16 + 3;
    let [header, upper, lower, footer] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(nodes.min(area.height / 3)),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(title(screen), header);
    let rows = report
        .nodes
        .iter()
        .map(|node| Row::new(text::node_cells(node).map(right)));
    let widths = [Constraint::Length(6), Constraint::Fill(1)].into_iter();
    let widths = widths.chain([12, 12, 6].map(Constraint::Length));
    let head = ["node", "CPUs", "memory", "free", "tier"].map(right);
    let table = Table::new(rows, widths).header(Row::new(head).add_modifier(Modifier::DIM));
    frame.render_widget(table.block(block("nodes")), upper);
    let tables = text::others(report);
    let columns = Layout::horizontal([Constraint::Fill(1); 2]).split(lower);
    for (column, tables) in tables.chunks(tables.len().div_ceil(2).max(1)).enumerate() {
        let areas =
            Layout::vertical(tables.iter().map(|_| Constraint::Fill(1))).split(columns[column]);
        for ((title, rows), area) in tables.iter().zip(areas.iter()) {
            counts(frame, *area, title, screen.since, rows.clone());
        }
    }
    keys(frame, footer);
}

fn title(screen: &Screen) -> Line<'static> {
    let mut line = vec![
        "ferry top".bold(),
        format!("   every {} s", screen.interval).into(),
    ];
    if screen.paused {
        line.push("   PAUSED".fg(Color::Yellow).bold());
    }
    if !screen.report.is_on() {
        line.push("   vm.mt_page_copy is not 1: helps only on request".fg(Color::Yellow));
    }
    Line::from(line)
}

/// Returns the essentials, for small terminals.
fn lines(screen: &Screen) -> Vec<Line<'static>> {
    let report = screen.report;
    let mut lines = Vec::new();
    for (name, all, split) in text::flows(report) {
        let split = split.map(|(caller, helper)| format!(" = {caller:.2} + {helper:.2} helpers"));
        let split = split.unwrap_or_default();
        lines.push(format!("{all:.2} GB/s {name}{split}").into());
    }
    lines.push(activity(report));
    lines.push(title(screen));
    for (name, times) in text::times(report) {
        lines.push(format!("{name}: {}", words::percentiles(times)).into());
    }
    lines.push(settings_line(report));
    lines.push(helped_line(report));
    for row in by_weight(words::left_alone(&report.counters)) {
        let per_s = short(row.count.per_s);
        lines.push(format!("{per_s}/s {}", row.words).into());
    }
    lines
}

fn activity(report: &Report) -> Line<'static> {
    let per_s = |name| short(report.counter(name).per_s.round());
    let cpus = match report.helper_cpus() {
        Some(cpus) => format!("{cpus:.2} CPUs help"),
        None => "CPUs unknown".to_owned(),
    };
    let batches = per_s("batches");
    let crews = per_s("crews");
    Line::from(format!("{batches} batches/s, {crews} crews/s, {cpus}"))
}

fn block(title: impl Into<Line<'static>>) -> Block<'static> {
    Block::bordered()
        .border_style(Style::new().fg(Color::DarkGray))
        .title(title.into())
}

fn header_row(cells: [&'static str; 4], columns: usize) -> Row<'static> {
    Row::new(cells.into_iter().take(columns).map(right)).add_modifier(Modifier::DIM)
}

fn right(text: impl Into<Span<'static>>) -> Line<'static> {
    Line::from(text.into()).alignment(Alignment::Right)
}

fn flows(frame: &mut Frame, area: Rect, report: &Report) {
    let inner = block("GB/s").title_bottom(activity(report));
    let rows = text::flows(report).into_iter().map(|(name, all, split)| {
        let cell = |gbps: Option<f64>| gbps.map_or_else(String::new, |n| format!("{n:.2}"));
        Row::new([
            Line::from(name),
            right(cell(Some(all)).bold()),
            right(cell(split.map(|s| s.0))),
            right(cell(split.map(|s| s.1))),
        ])
    });
    let widths = [16, 8, 8, 8].map(Constraint::Length);
    let table = Table::new(rows, widths).block(inner);
    frame.render_widget(
        table.header(header_row(["", "all", "callers", "helpers"], 4)),
        area,
    );
}

fn sparkline(frame: &mut Frame, area: Rect, history: &[f64]) {
    let room = usize::from(area.width.saturating_sub(2));
    let shown = &history[history.len().saturating_sub(room)..];
    let most = shown.iter().copied().fold(0.0, f64::max);
    // Bars have integer heights.
    let data: Vec<u64> = shown
        .iter()
        .map(|gbps| (gbps / most * 1e3) as u64)
        .collect();
    let line = Sparkline::default()
        .data(&data)
        .style(Style::new().fg(Color::Cyan))
        .block(block(format!("migrated, max {most:.2} GB/s")));
    frame.render_widget(line, area);
}

/// Keeps the order, but puts counters at zero last.
fn by_weight(mut rows: Vec<Words>) -> Vec<Words> {
    rows.sort_by_key(|row| row.count.total == 0);
    rows
}

fn demotion(report: &Report) -> Vec<Words> {
    let mut rows = words::demoted(&report.counters);
    for row in &mut rows {
        row.words.insert_str(0, "demoted: ");
    }
    rows
}

fn counts(frame: &mut Frame, area: Rect, title: &'static str, since: &str, rows: Vec<Words>) {
    let rows = by_weight(rows);
    let room = usize::from(area.height.saturating_sub(3));
    let hidden = rows.len().saturating_sub(room);
    let mut frame_of = block(title);
    if hidden > 0 {
        frame_of = frame_of.title_bottom(format!("{hidden} more"));
    }
    frame_of = frame_of.title_top(right(format!("total {since}")));
    let shown = rows.into_iter().take(room).map(|row| {
        let style = if row.count.gained > 0 {
            Style::new().bold()
        } else if row.count.total == 0 {
            Style::new().dim()
        } else {
            Style::new()
        };
        Row::new([
            Line::from(row.words),
            right(short(row.count.per_s.round())),
            right(short(row.count.total as f64)),
        ])
        .style(style)
    });
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(7),
        Constraint::Length(7),
    ];
    let table = Table::new(shown, widths).block(frame_of);
    frame.render_widget(
        table.header(header_row(["", "per s", "total", ""], 3)),
        area,
    );
}

fn histogram(frame: &mut Frame, area: Rect, name: &'static str, times: &Times) {
    let block = block(name);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let [said, chart, axis] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(inner);
    let text = Paragraph::new(words::percentiles(times)).wrap(Wrap { trim: true });
    let Some(times) = times.as_ref().ok().filter(|times| times.events() > 0) else {
        return frame.render_widget(text, inner);
    };
    frame.render_widget(text, said);
    let (from, filled) = times.filled();
    let shown = &filled[..filled.len().min(usize::from(chart.width))];
    let Some(last) = shown.last() else { return };
    // Bars of equal width, with a gap if there is room.
    let each = (usize::from(chart.width) / shown.len()).clamp(1, 6) as u16;
    let most = shown.iter().map(|b| b.count).max().unwrap_or(0).max(1);
    // The chart multiplies the values, so large counts are scaled down.
    let height = |count| u128::from(count) * 1000 / u128::from(most);
    let bars: Vec<Bar> = shown
        .iter()
        .map(|bucket| {
            Bar::default()
                .value(height(bucket.count) as u64)
                .text_value(String::new())
        })
        .collect();
    let bars = BarChart::default()
        .data(BarGroup::default().bars(&bars))
        .bar_width(each.saturating_sub(1).max(1))
        .bar_gap(u16::from(each > 1))
        .bar_style(Style::new().fg(Color::Cyan));
    frame.render_widget(bars, chart);
    let to = last
        .below_us
        .map_or_else(|| "longer".to_owned(), words::time);
    let scale = format!("{} to {to}", words::time(from));
    frame.render_widget(Paragraph::new(scale.dim()), axis);
}

fn settings(frame: &mut Frame, area: Rect, report: &Report) {
    let lines: Vec<Line> = report
        .settings
        .iter()
        .map(|(name, value)| Line::from(vec![format!("{name} ").dim(), value.clone().into()]))
        .collect();
    let text = Paragraph::new(lines).wrap(Wrap { trim: true });
    frame.render_widget(text.block(block("settings")), area);
}

fn settings_line(report: &Report) -> Line<'static> {
    let mut line = Vec::new();
    for (name, value) in &report.settings {
        line.push(format!("{name} ").dim());
        line.push(format!("{value}  ").into());
    }
    Line::from(line)
}

fn helped_line(report: &Report) -> Line<'static> {
    let mut line = vec!["helped pages/s (total) ".dim()];
    let rows = words::named(&report.helped);
    for row in rows.into_iter().filter(|row| row.count.total > 0) {
        let (per_s, total) = (
            short(row.count.per_s.round()),
            short(row.count.total as f64),
        );
        line.push(format!(" {} {per_s} ({total})", row.words).into());
    }
    if line.len() == 1 {
        line.push(" none yet".into());
    }
    Line::from(line)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{histogram::Histogram, sample::fixture},
        *,
    };
    use proptest::prelude::*;
    use ratatui::{backend::TestBackend, Terminal};
    use std::time::Duration;

    /// Returns a report of one second in which all counters grew.
    fn busy() -> Report {
        let before = fixture::sample(&fixture::ferry());
        let mut after = before.clone();
        after.at += Duration::from_secs(1);
        for (index, count) in after.counters.values_mut().enumerate() {
            *count += 1_000_000 * (index as u64 + 1);
        }
        after.helped.insert("syscall".to_owned(), 201_700);
        after.unmapped = Histogram::parse("32 11\n64 90\n128 3\ninf 0\n");
        Report::new(&before, &after, None, 4096)
    }

    /// Returns the screen as text, one line per row.
    fn drawn(report: &Report, history: &[f64], paused: bool, size: (u16, u16)) -> String {
        page(report, history, (paused, false), size)
    }

    /// As `drawn`; the second flag is whether the other features are shown.
    fn page(
        report: &Report,
        history: &[f64],
        (paused, others): (bool, bool),
        size: (u16, u16),
    ) -> String {
        let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
        let screen = Screen {
            report,
            history,
            interval: 1.0,
            paused,
            others,
            since: "since boot",
        };
        terminal.draw(|frame| draw(frame, &screen)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let cells = buffer.content().chunks(usize::from(size.0.max(1)));
        cells
            .map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>() + "\n")
            .collect()
    }

    fn shows(text: &str, words: &[&str]) {
        for word in words {
            assert!(text.contains(word), "no `{word}` in\n{text}");
        }
    }

    const ESSENTIALS: [&str; 17] = [
        "migrated, all",
        "by crews",
        "copied together",
        "by DMA engines",
        "callers",
        "helpers",
        "batches/s, 5.00M crews/s, 6.00 CPUs help",
        "too few to share",
        "no idle CPU may help",
        "has unexpected references",
        "median < 64 us, 99% < 128 us",
        "none in this interval",
        "0 us to 128 us",
        "helped pages/s (total)  demotion 0 (100) syscall 200k (202k)",
        "mt_page_copy 1  limit_mt_num 4  push_0_pull_1 0  mt_page_crew 1  reasons",
        "q quit",
        "since boot",
    ];

    #[test]
    fn usual_terminal_has_the_essentials() {
        let text = drawn(&busy(), &[1.0, 2.5, 0.0], false, (80, 24));
        shows(&text, &ESSENTIALS);
        shows(&text, &["max 2.50 GB/s", "█"]);
        assert!(!text.contains("PAUSED"));
    }

    #[test]
    fn large_terminal_has_lists() {
        let text = drawn(&busy(), &[], true, (120, 40));
        shows(&text, &ESSENTIALS[..12]);
        shows(
            &text,
            &[
                "helped (pages)",
                "settings",
                "reasons syscall mbind",
                "demoted: kswapd",
                "PAUSED",
            ],
        );
    }

    #[test]
    fn other_features_have_a_page() {
        let text = page(&busy(), &[], (false, true), (80, 24));
        shows(
            &text,
            &[
                "deferred TLB flushes",
                "deferred pages",
                "flushed at once",
                "writable",
            ],
        );
        shows(&text, &["system.slice", "nodes", "4 KB", "90", "q quit"]);
        assert!(!text.contains("too few to share"));
    }

    #[test]
    fn small_terminal_has_the_first_lines() {
        let text = drawn(&busy(), &[], false, (20, 5));
        shows(&text, &["GB/s migrated", "GB/s by crews", "batches"]);
        assert_eq!(
            drawn(&busy(), &[], false, (1, 1))
                .trim_end()
                .chars()
                .count(),
            1
        );
    }

    #[test]
    fn kernel_that_is_off_or_old_is_said_so() {
        let root = tempfile::tempdir().unwrap();
        fixture::put(&root, "proc/vmstat", "");
        fixture::count(&root, "batches", 1);
        let sample = fixture::sample(&root);
        let report = Report::new(&sample, &sample, None, 4096);
        let text = drawn(&report, &[], false, (80, 24));
        shows(
            &text,
            &[
                "mt_page_copy is not 1",
                "does not have it",
                "CPUs unknown",
                "none yet",
            ],
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_size_can_be_drawn(
            width in 0_u16..200,
            height in 0_u16..70,
            counts in prop::collection::vec(any::<u64>(), 1..80),
        ) {
            let mut report = busy();
            let last = counts.len() - 1;
            let bound = |i: usize| if i == last { "inf".to_owned() } else { (i + 1).to_string() };
            let lines = counts.iter().enumerate().map(|(i, n)| format!("{} {n}\n", bound(i)));
            report.first_folio = Histogram::parse(&lines.collect::<String>());
            prop_assert!(report.first_folio.is_ok());
            for others in [false, true] {
                page(&report, &[f64::MAX, 0.0], (true, others), (width, height));
            }
        }
    }
}
