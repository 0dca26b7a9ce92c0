//! What is printed: aligned tables, progress, colours where a terminal can show them.
//!
//! Progress goes to standard error and tables to standard output, so that a run can be piped.

use std::time::Duration;

use comfy_table::{CellAlignment, ColumnConstraint, Table, presets};
use console::style;
use indicatif::{ProgressBar, ProgressStyle};

/// How a figure compares with what it ought to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Nothing is asked of it.
    Plain,
    /// As it has to be, or the best of its column.
    Good,
    /// Not as it has to be.
    Bad,
}

/// One cell.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) tone: Tone,
}

impl Cell {
    /// In green or red where there is a verdict.
    pub(crate) fn new(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tone }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text, Tone::Plain)
    }
}

/// A table with a heading: what a command prints, what a page shows and what a report quotes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Grid {
    pub(crate) title: String,
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<Cell>>,
    /// What is to be known of the figures.
    pub(crate) notes: Vec<String>,
}

impl Grid {
    /// Without rows.
    pub(crate) fn new(title: impl Into<String>, head: &[&str]) -> Self {
        let head = head.iter().map(|text| (*text).to_owned()).collect();
        Self { title: title.into(), head, ..Self::default() }
    }

    /// Prints it, coloured on a terminal only.
    pub(crate) fn print(&self) {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header(self.head.iter().map(|text| style(text).bold().to_string()));
        for row in &self.rows {
            table.add_row(row.iter().map(|cell| match cell.tone {
                Tone::Plain => cell.text.clone(),
                Tone::Good => style(&cell.text).green().to_string(),
                Tone::Bad => style(&cell.text).red().bold().to_string(),
            }));
        }
        for (i, column) in table.column_iter_mut().enumerate() {
            column.set_constraint(ColumnConstraint::ContentWidth);
            if i > 0 && self.is_numbers(i) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        println!("\n{}", style(&self.title).bold());
        println!("{}", table.trim_fmt());
        self.notes.iter().for_each(|note| println!("{}", style(note).dim()));
    }

    /// The table in Markdown.
    pub(crate) fn markdown(&self) -> String {
        let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
        let mut text = line(self.head.iter().map(String::as_str).collect());
        let rules = (0..self.head.len()).map(|i| if i > 0 && self.is_numbers(i) { "---:" } else { "---" });
        text += &line(rules.collect());
        for row in &self.rows {
            let cells = row.iter().map(|cell| match cell.tone {
                Tone::Bad => format!("**{}**", cell.text),
                Tone::Plain | Tone::Good => cell.text.clone(),
            });
            let cells = cells.collect::<Vec<_>>();
            text += &line(cells.iter().map(String::as_str).collect());
        }
        text
    }

    /// Whether a column is one of numbers, which stand to the right.
    pub(crate) fn is_numbers(&self, column: usize) -> bool {
        let mut cells = self.rows.iter().map(|row| row[column].text.as_str());
        cells.all(|text| text.starts_with(|c: char| c.is_ascii_digit() || "-–>+".contains(c)))
    }
}

/// A bar on standard error: hidden where that is no terminal.
pub(crate) fn progress(steps: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:12} {bar:32} {pos:>6}/{len:6} {elapsed:>4} {wide_msg}")
        .expect("the template is valid");
    let bar = ProgressBar::new(steps).with_style(style).with_prefix(what);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Something to know that stops nothing.
pub(crate) fn warn(text: &str) {
    eprintln!("{} {text}", console::style("note:").yellow().bold().for_stderr());
}

/// `1.02`, `9.3`, `128`: three digits that matter.
pub(crate) fn digits(value: f64) -> String {
    match value.abs() {
        small if small < 10.0 => format!("{value:.2}"),
        some if some < 100.0 => format!("{some:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Microseconds to read: `0.30 ms`, `42 ms`, `9.50 s`, `3 min 20 s`.
pub(crate) fn time(us: u64) -> String {
    let secs = us as f64 / 1e6;
    match us {
        0 => "0".to_owned(),
        1..1_000 => format!("{:.2} ms", secs * 1e3),
        1_000..10_000 => format!("{:.1} ms", secs * 1e3),
        10_000..1_000_000 => format!("{:.0} ms", secs * 1e3),
        1_000_000..120_000_000 => format!("{secs:.2} s"),
        _ => format!("{} min {:02} s", us / 60_000_000, us / 1_000_000 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_in_markdown_has_numbers_to_the_right() {
        let mut grid = Grid::new("title", &["who", "how many"]);
        grid.rows.push(vec!["first".into(), "12".into()]);
        grid.rows.push(vec!["second".into(), Cell::new("3", Tone::Bad)]);
        let expected = "| who | how many |\n| --- | ---: |\n| first | 12 |\n| second | **3** |\n";
        assert_eq!(grid.markdown(), expected);
    }

    #[test]
    fn times_have_three_digits() {
        let texts = [0, 300, 42_000, 9_500_000, 200_000_000].map(time);
        assert_eq!(texts, ["0", "0.30 ms", "42 ms", "9.50 s", "3 min 20 s"]);
    }
}
