//! A page: one HTML file with everything in it.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};

use super::ink::{Ink, escape};
use super::{Bars, Lines};
use crate::terminal::{Grid, Tone};

const STYLE: &str = include_str!("page.css");

/// A page in the making.
#[derive(Debug, Default)]
pub(crate) struct Page {
    title: String,
    body: String,
}

impl Page {
    /// With what it is about, in a sentence or two.
    pub(crate) fn new(title: &str, lead: &str) -> Self {
        let mut page = Self { title: title.to_owned(), body: String::new() };
        _ = write!(page.body, "<h1>{}</h1>\n<p>{}</p>\n", escape(title), escape(lead));
        page
    }

    /// A chapter, with what is to be known of it.
    pub(crate) fn chapter(&mut self, title: &str, text: &str) {
        _ = writeln!(self.body, "<h2>{}</h2>\n<p>{}</p>", escape(title), escape(text));
    }

    pub(crate) fn bars(&mut self, bars: &Bars) -> Result<()> {
        let series = if bars.series.len() > 1 { &bars.series[..] } else { &[] };
        self.figure(&bars.title, series, bars.mark.as_ref().map(|(_, text)| text), &bars.svg()?);
        Ok(())
    }

    pub(crate) fn lines(&mut self, lines: &Lines) -> Result<()> {
        let names = lines.lines.iter().map(|line| line.name.clone()).collect::<Vec<_>>();
        self.figure(&lines.title, &names, lines.mark.as_ref().map(|(_, text)| text), &lines.svg()?);
        Ok(())
    }

    /// The drawing, and above it what is what: in the page's own text, which wraps where a drawing cannot.
    fn figure(&mut self, title: &str, series: &[String], mark: Option<&String>, svg: &str) {
        _ = write!(self.body, "<figure>\n<figcaption><b>{}</b>", escape(title));
        for (i, name) in series.iter().enumerate() {
            let color = Ink::Series(i).variable();
            _ = write!(
                self.body,
                " <span class=\"key\"><i style=\"background:{color}\"></i>{}</span>",
                escape(name)
            );
        }
        if let Some(mark) = mark {
            _ = write!(self.body, " <span class=\"key\"><i class=\"mark\"></i>{}</span>", escape(mark));
        }
        _ = writeln!(self.body, "</figcaption>\n{svg}\n</figure>");
    }

    pub(crate) fn table(&mut self, grid: &Grid) {
        _ = write!(self.body, "<h3>{}</h3>\n<div class=\"wide\"><table>\n<tr>", escape(&grid.title));
        for (i, head) in grid.head.iter().enumerate() {
            let class = if i > 0 && grid.is_numbers(i) { " class=\"number\"" } else { "" };
            _ = write!(self.body, "<th{class}>{}</th>", escape(head));
        }
        self.body += "</tr>\n";
        for row in &grid.rows {
            self.body += "<tr>";
            for (i, cell) in row.iter().enumerate() {
                let number = if i > 0 && grid.is_numbers(i) { "number" } else { "" };
                let tone = match cell.tone {
                    Tone::Plain => "",
                    Tone::Good => " good",
                    Tone::Bad => " bad",
                };
                _ = write!(self.body, "<td class=\"{number}{tone}\">{}</td>", escape(&cell.text));
            }
            self.body += "</tr>\n";
        }
        self.body += "</table></div>\n";
        for note in &grid.notes {
            _ = writeln!(self.body, "<p class=\"note\">{}</p>", escape(note));
        }
    }

    pub(crate) fn html(&self) -> String {
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{}</title>\n<link rel=\"icon\" href=\"data:,\">\n<style>\n{STYLE}</style>\n</head>\n\
             <body>\n<main>\n{}</main>\n</body>\n</html>\n",
            escape(&self.title),
            self.body
        )
    }

    /// Writes it, with the raw figures beside it under the same name.
    pub(crate) fn write(&self, folder: &Path, name: &str, figures: &impl serde::Serialize) -> Result<()> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let page = folder.join(name).with_extension("html");
        std::fs::write(&page, self.html()).with_context(|| format!("cannot write {}", page.display()))?;
        let json = serde_json::to_string_pretty(figures)?;
        std::fs::write(page.with_extension("json"), json + "\n")?;
        Ok(())
    }
}
