//! Horizontal bars in groups: one group a category, one bar a series, each with its value beside it.

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::ink::{self, Ink};

const WIDTH: u32 = 760;
const BAR: f64 = 15.0;
const GAP: f64 = 12.0;
const TOP: u32 = 8;
const BOTTOM: u32 = 44;
const RIGHT: u32 = 20;

/// One bar.
#[derive(Debug, Clone)]
pub(crate) struct Bar {
    /// `None` where nothing was measured.
    pub(crate) value: Option<f64>,
    pub(crate) label: String,
    /// Which of the series it belongs to.
    pub(crate) series: usize,
}

/// A chart of bars.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bars {
    pub(crate) title: String,
    /// What the values are, with their unit.
    pub(crate) axis: String,
    pub(crate) series: Vec<String>,
    /// Each with its bars, from the top down; each has as many.
    pub(crate) categories: Vec<(String, Vec<Bar>)>,
    /// What the values are held against.
    pub(crate) mark: Option<(f64, String)>,
    /// Where the axis ends at the latest; longer bars are cut there.
    pub(crate) most: Option<f64>,
}

impl Bars {
    pub(crate) fn svg(&self) -> Result<String> {
        let bars_each = self.categories.iter().map(|(_, bars)| bars.len()).max().unwrap_or(1);
        let group = BAR * bars_each as f64 + GAP;
        let height = TOP + BOTTOM + (group * self.categories.len() as f64) as u32;
        let bars = || self.categories.iter().flat_map(|(_, bars)| bars).filter_map(|bar| bar.value);
        let marked = self.mark.as_ref().map_or(0.0, |(at, _)| *at);
        let longest = bars().fold(marked, f64::max);
        let names = self.categories.iter().map(|(name, _)| name.as_str());
        let names = ink::width(names, 12.0) + 14;
        let all = self.categories.iter().flat_map(|(_, bars)| bars);
        let widest = f64::from(ink::width(all.map(|bar| bar.label.as_str()), 11.0) + 10);
        let room = f64::from(WIDTH - RIGHT - names);
        // Beside the longest bar there has to be room for what is written there.
        let full = self.most.map_or(longest, |most| longest.min(most)).max(1e-9);
        let end = full * room / (room - widest).max(room / 3.0);
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
            let mut chart = ChartBuilder::on(&root)
                .margin_top(TOP)
                .margin_right(RIGHT)
                .x_label_area_size(BOTTOM)
                .y_label_area_size(names)
                .build_cartesian_2d(0.0..end, 0.0..group * self.categories.len() as f64)?;
            chart
                .configure_mesh()
                .disable_y_mesh()
                .y_labels(0)
                .x_labels(8)
                .x_desc(&self.axis)
                .x_label_formatter(&|value| ink::number(*value))
                .axis_desc_style(ink::text(13.0, ink::beside(HPos::Center)))
                .label_style(ink::text(12.0, ink::beside(HPos::Center)))
                .axis_style(Ink::Grid.color())
                .bold_line_style(Ink::Grid.color())
                .light_line_style(TRANSPARENT)
                .draw()?;
            let mut labels = Vec::new();
            for (i, (name, bars)) in self.categories.iter().enumerate() {
                // From the top down, while the axis counts from the bottom up.
                let top = group * (self.categories.len() - i) as f64 - GAP / 2.0;
                for (bar, place) in bars.iter().zip(0..) {
                    let (from, to) =
                        (top - BAR * f64::from(place + 1) + 1.0, top - BAR * f64::from(place) - 1.0);
                    let value = bar.value.unwrap_or(0.0).min(full);
                    let color = Ink::Series(bar.series).color().filled();
                    chart.draw_series([Rectangle::new([(0.0, from), (value, to)], color)])?;
                    let (x, y) = chart.backend_coord(&(value, f64::midpoint(from, to)));
                    let label = ink::text(11.0, ink::beside(HPos::Left));
                    labels.push(Text::new(bar.label.clone(), (x + 7, y), label));
                }
                let middle = top - BAR * bars.len() as f64 / 2.0;
                let (x, y) = chart.backend_coord(&(0.0, middle));
                root.draw(&Text::new(name.clone(), (x - 8, y), ink::text(12.0, ink::beside(HPos::Right))))?;
            }
            if let Some((at, _)) = &self.mark {
                let line = vec![(*at, 0.0), (*at, group * self.categories.len() as f64)];
                let style = Ink::Mark.color().stroke_width(2);
                chart.draw_series(DashedLineSeries::new(line, 6, 4, style))?;
            }
            // Over everything else, for a label may stand across the mark.
            labels.iter().try_for_each(|label| root.draw(label))?;
            root.present()?;
        }
        Ok(ink::finish(&svg, &self.title))
    }
}
