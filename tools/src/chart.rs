// SPDX-License-Identifier: GPL-2.0
//! Figures as an SVG: one panel a folio size, a line a configuration.

use crate::results::{config_order, distinct, find, Figure};
use anyhow::{anyhow, Result};
use plotters::{
    coord::Shift,
    prelude::*,
    style::full_palette::{GREY_500, ORANGE_700, PURPLE_500, TEAL_600},
};
use std::{fmt::Display, path::Path};

const PANEL: (u32, u32) = (620, 420);

pub fn draw(figures: &[Figure], title: &str, path: &Path) -> Result<()> {
    let mut svg = String::new();
    let folios = distinct(figures, |f| f.folio.clone());
    let size = (PANEL.0 * folios.len().max(1) as u32, PANEL.1);
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        for (panel, folio) in area
            .split_evenly((1, folios.len().max(1)))
            .iter()
            .zip(&folios)
        {
            let of_size: Vec<Figure> = figures
                .iter()
                .filter(|f| &f.folio == folio)
                .cloned()
                .collect();
            draw_panel(panel, &of_size, folio, &format!("{title}: {folio} folios"))?;
        }
        area.present().map_err(failed)?;
    }
    crate::cache::write_result(path, svg.as_bytes())
}

fn draw_panel(
    panel: &DrawingArea<SVGBackend, Shift>,
    figures: &[Figure],
    folio: &str,
    title: &str,
) -> Result<()> {
    let counts = distinct(figures, |f| f.count);
    let mut configs = distinct(figures, |f| f.config.clone());
    configs.sort_by_key(|config| config_order(config));
    let top = figures.iter().map(|f| f.max).fold(0.1, f64::max) * 1.1;
    let last = counts.len().saturating_sub(1).max(1) as f64;
    let mut chart = ChartBuilder::on(panel)
        .caption(title, ("sans-serif", 18))
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
        .x_desc("folios in one call")
        .y_desc("GB/s")
        .light_line_style(TRANSPARENT)
        .draw()
        .map_err(failed)?;
    for config in &configs {
        let color = color(config);
        let points: Vec<(f64, &Figure)> = counts
            .iter()
            .enumerate()
            .filter_map(|(x, &count)| Some((x as f64, find(figures, folio, count, config)?)))
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
    fn chart_names_its_sizes_counts_and_configurations() {
        let mut pool = Pool::default();
        for count in [1, 16, 128] {
            pool.add("2M", count, "vanilla", &[2.0, 2.2]);
            pool.add("2M", count, "ferry-2", &[3.0, 4.0]);
        }
        pool.add("4K", 1024, "vanilla", &[0.5]);
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("c.svg");
        draw(&pool.figures("move_pages", false), "title", &path).unwrap();
        let svg = std::fs::read_to_string(path).unwrap();
        for text in [
            "2M folios",
            "4K folios",
            "ferry-2",
            "GB/s",
            "\n128\n",
            "\n1024\n",
        ] {
            assert!(svg.contains(text), "{text:?} is not in the chart");
        }
    }
}
