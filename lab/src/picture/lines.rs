//! Something over time, or over anything else that grows: one line a series, beside what it is held against.

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::ink::{self, Ink};

const WIDTH: u32 = 760;
const HEIGHT: u32 = 300;

/// One line.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A chart of lines.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lines {
    pub(crate) title: String,
    pub(crate) x_axis: String,
    pub(crate) y_axis: String,
    pub(crate) lines: Vec<Line>,
    /// What the lines are held against: a height, and what it is.
    pub(crate) mark: Option<(f64, String)>,
}

impl Lines {
    pub(crate) fn svg(&self) -> Result<String> {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let right = points().map(|(x, _)| *x).fold(1e-9, f64::max);
        let marked = self.mark.as_ref().map_or(0.0, |(at, _)| *at);
        let top = points().map(|(_, y)| *y).fold(marked.max(1e-9), f64::max) * 1.08;
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
            let mut chart = ChartBuilder::on(&root)
                .margin_top(10)
                .margin_right(24)
                .x_label_area_size(44)
                .y_label_area_size(64)
                .build_cartesian_2d(0.0..right, 0.0..top)?;
            chart
                .configure_mesh()
                .x_labels(10)
                .y_labels(6)
                .x_label_formatter(&|value| ink::number(*value))
                .y_label_formatter(&|value| ink::number(*value))
                .x_desc(&self.x_axis)
                .y_desc(&self.y_axis)
                .axis_desc_style(ink::text(13.0, ink::beside(HPos::Center)))
                .label_style(ink::text(12.0, ink::beside(HPos::Center)))
                .axis_style(Ink::Grid.color())
                .bold_line_style(Ink::Grid.color())
                .light_line_style(TRANSPARENT)
                .draw()?;
            for (i, line) in self.lines.iter().enumerate() {
                // The first one is broad, so that it shows under one that runs the same way.
                let style = Ink::Series(i).color().stroke_width(if i == 0 { 5 } else { 2 });
                chart.draw_series(LineSeries::new(line.points.iter().copied(), style))?;
            }
            if let Some((at, _)) = &self.mark {
                let style = Ink::Mark.color().stroke_width(2);
                chart.draw_series(DashedLineSeries::new([(0.0, *at), (right, *at)], 6, 4, style))?;
            }
            root.present()?;
        }
        Ok(ink::finish(&svg, &self.title))
    }
}
