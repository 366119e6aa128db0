// SPDX-License-Identifier: GPL-2.0-only
//! Draws figures as an SVG: a row of panels per kind of figure, a panel per folio size, a line per
//! configuration.

use crate::results::{config_order, distinct, Figure};
use anyhow::{anyhow, Result};
use plotters::{
    coord::Shift,
    prelude::*,
    style::full_palette::{GREY_500, ORANGE_700, PURPLE_500, TEAL_600},
};
use std::{collections::BTreeSet, fmt::Display};

const PANEL: (u32, u32) = (620, 420);

/// One row of panels, and the labels of their axes.
pub struct Sheet<'a> {
    /// The start of the panels' captions.
    pub title: &'a str,
    /// The figures of all panels.
    pub figures: &'a [Figure],
    /// The value on the horizontal axis.
    pub x: fn(&Figure) -> u32,
    /// The label of the horizontal axis.
    pub x_name: &'static str,
    /// The label of the vertical axis.
    pub y_name: &'static str,
}

impl<'a> Sheet<'a> {
    /// Returns a sheet of throughput by the number of folios.
    pub fn by_count(title: &'a str, figures: &'a [Figure]) -> Self {
        Sheet {
            title,
            figures,
            x: |f| f.count,
            x_name: "folios in one call",
            y_name: "GB/s",
        }
    }
}

/// Returns an SVG of all sheets.
pub fn draw(sheets: &[Sheet]) -> Result<String> {
    let mut svg = String::new();
    let folios = |sheet: &Sheet| distinct(sheet.figures, |f| f.folio.clone());
    let columns = sheets.iter().map(|s| folios(s).len()).max().unwrap_or(0);
    let (columns, rows) = (columns.max(1), sheets.len().max(1));
    let size = (PANEL.0 * columns as u32, PANEL.1 * rows as u32);
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        let panels = area.split_evenly((rows, columns));
        for (sheet, row) in sheets.iter().zip(panels.chunks(columns)) {
            for (folio, panel) in folios(sheet).iter().zip(row) {
                draw_panel(panel, sheet, folio)?;
            }
        }
        area.present().map_err(failed)?;
    }
    Ok(svg)
}

/// Height of a bar's row, and room for the names of the rows.
const BAR_ROW: u32 = 34;
const NAMES: u32 = 260;

/// Returns an SVG of horizontal bars: two gains for each named row, and a line at 1, where nothing
/// is gained or lost. `names` are those of the two.
pub fn gains(rows: &[(&str, [Option<f64>; 2])], names: [&str; 2]) -> Result<String> {
    let mut svg = String::new();
    let size = (900, BAR_ROW * rows.len().max(1) as u32 + 80);
    let last = rows.len() as f64;
    let most = rows.iter().flat_map(|(_, gains)| gains.iter().flatten());
    let most = most.copied().fold(1.0, f64::max) * 1.1;
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        // Rows go down, as in a table.
        let mut chart = ChartBuilder::on(&area)
            .margin(12)
            .x_label_area_size(30)
            .y_label_area_size(NAMES)
            .build_cartesian_2d(0.0..most, last..0.0)
            .map_err(failed)?;
        let name = |y: &f64| {
            let there = (y.fract() - 0.5).abs() < 0.01;
            let row = there.then(|| rows.get(*y as usize)).flatten();
            row.map_or_else(String::new, |(name, _)| (*name).to_owned())
        };
        chart
            .configure_mesh()
            .disable_y_mesh()
            .y_labels(2 * rows.len() + 1)
            .y_label_formatter(&name)
            .x_label_formatter(&|x| format!("{x:.1} x"))
            .light_line_style(TRANSPARENT)
            .draw()
            .map_err(failed)?;
        for (at, (name, color)) in names.into_iter().zip([GREY_500, TEAL_600]).enumerate() {
            let bars = rows.iter().enumerate().filter_map(|(row, (_, gains))| {
                let top = row as f64 + 0.14 + 0.36 * at as f64;
                let corners = [(0.0, top), (gains[at]?, top + 0.36)];
                Some(Rectangle::new(corners, color.filled()))
            });
            chart
                .draw_series(bars)
                .map_err(failed)?
                .label(name)
                .legend(move |(x, y)| {
                    Rectangle::new([(x, y - 5), (x + 14, y + 5)], color.filled())
                });
        }
        let even = PathElement::new([(1.0, 0.0), (1.0, last)], BLACK.stroke_width(1));
        chart.draw_series([even]).map_err(failed)?;
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.8))
            .border_style(GREY_500)
            .draw()
            .map_err(failed)?;
        area.present().map_err(failed)?;
    }
    Ok(svg)
}

fn draw_panel(panel: &DrawingArea<SVGBackend, Shift>, sheet: &Sheet, folio: &str) -> Result<()> {
    let figures: Vec<&Figure> = sheet.figures.iter().filter(|f| f.folio == folio).collect();
    let counts: BTreeSet<u32> = figures.iter().map(|f| (sheet.x)(f)).collect();
    let counts: Vec<u32> = counts.into_iter().collect();
    let mut configs = distinct(sheet.figures, |f| f.config.clone());
    configs.sort_by_key(|config| config_order(config));
    let top = figures.iter().map(|f| f.max).fold(0.1, f64::max) * 1.1;
    let last = counts.len().saturating_sub(1).max(1) as f64;
    let mut chart = ChartBuilder::on(panel)
        .caption(
            format!("{}: {folio} folios", sheet.title),
            ("sans-serif", 18),
        )
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(50)
        .build_cartesian_2d(-0.2..last + 0.2, 0.0..top)
        .map_err(failed)?;
    let label = |x: &f64| {
        let index = x.round();
        let there = (x - index).abs() < 0.01 && index >= 0.0;
        let count = there.then(|| counts.get(index as usize)).flatten();
        count.map_or_else(String::new, u32::to_string)
    };
    chart
        .configure_mesh()
        .x_labels(2 * counts.len().max(2))
        .x_label_formatter(&label)
        .x_desc(sheet.x_name)
        .y_desc(sheet.y_name)
        .light_line_style(TRANSPARENT)
        .draw()
        .map_err(failed)?;
    for config in &configs {
        let color = color(config);
        let points: Vec<(f64, &Figure)> = counts
            .iter()
            .enumerate()
            .filter_map(|(x, &count)| {
                let there = |f: &&&Figure| (sheet.x)(f) == count && &f.config == config;
                Some((x as f64, *figures.iter().find(there)?))
            })
            .collect();
        chart
            .draw_series(LineSeries::new(
                points.iter().map(|(x, f)| (*x, f.gbps)),
                color.stroke_width(2),
            ))
            .map_err(failed)?
            .label(config.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        chart
            .draw_series(
                points.iter().map(|(x, f)| {
                    PathElement::new([(*x, f.min), (*x, f.max)], color.stroke_width(1))
                }),
            )
            .map_err(failed)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(GREY_500)
        .draw()
        .map_err(failed)
}

fn color(config: &str) -> RGBColor {
    match config_order(config) {
        (0, _) => BLACK,
        (1, _) => GREY_500,
        (2, _) => ORANGE_700,
        // A colour for each doubling of a setting's value.
        (5, value) => {
            let at = value.checked_ilog2().unwrap_or(0) as usize;
            let (r, g, b) = Palette99::COLORS[at % Palette99::COLORS.len()];
            RGBColor(r, g, b)
        }
        (_, 0 | 1) => TEAL_600,
        (_, 2) => RED,
        (_, 3..=4) => BLUE,
        _ => PURPLE_500,
    }
}

fn failed(error: impl Display) -> anyhow::Error {
    anyhow!("cannot draw the chart: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Pool;

    #[test]
    fn gains_name_their_rows_and_both_sides() {
        let rows = [
            ("elapsed", [Some(0.9), Some(1.0)]),
            ("flushes", [Some(0.42), None]),
        ];
        let svg = gains(&rows, ["document", "here"]).unwrap();
        for text in ["elapsed", "flushes", "document", "here", "1.0 x"] {
            assert!(svg.contains(text), "{text:?} is not in the chart");
        }
    }

    #[test]
    fn chart_names_its_sizes_counts_and_configurations() {
        let mut pool = Pool::default();
        for count in [1, 16, 128] {
            pool.add("2M", count, "vanilla", &[2.0, 2.2]);
            pool.add("2M", count, "ferry-2", &[3.0, 4.0]);
        }
        pool.add("4K", 1024, "vanilla", &[0.5]);
        let figures = pool.figures("move_pages", false);
        let other = Sheet {
            title: "other",
            figures: &figures,
            x: |f| 1000 * f.count + 1,
            x_name: "else",
            y_name: "loops",
        };
        let svg = draw(&[Sheet::by_count("title", &figures), other]).unwrap();
        for text in [
            "title: 2M folios",
            "title: 4K folios",
            "other: 2M folios",
            "\n128001\n",
            "loops",
            "ferry-2",
            "GB/s",
            "\n128\n",
            "\n1024\n",
        ] {
            assert!(svg.contains(text), "{text:?} is not in the chart");
        }
    }
}
