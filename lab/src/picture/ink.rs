//! Colours by their role. A drawing has stand-ins, and the page's style says what they are.

use plotters::style::text_anchor::{self, Pos};
use plotters::style::{Color, FontDesc, FontFamily, FontStyle, RGBColor, TextStyle};

/// Series that can be told apart.
pub(crate) const SERIES: usize = 10;

/// What a colour is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ink {
    /// Data; counted round.
    Series(usize),
    Text,
    /// Lines behind the data.
    Grid,
    /// What the data is held against.
    Mark,
}

impl Ink {
    /// The stand-in: no two are the same, and no chart has another colour.
    pub(crate) fn color(self) -> RGBColor {
        match self {
            Ink::Series(i) => RGBColor(0xA0, 0x00, (i % SERIES) as u8),
            Ink::Text => RGBColor(0xB0, 0x00, 0x01),
            Ink::Grid => RGBColor(0xB0, 0x00, 0x02),
            Ink::Mark => RGBColor(0xB0, 0x00, 0x03),
        }
    }

    /// The variable of the page's style.
    pub(crate) fn variable(self) -> String {
        match self {
            Ink::Series(i) => format!("var(--s{})", i % SERIES),
            Ink::Text => "var(--text)".to_owned(),
            Ink::Grid => "var(--grid)".to_owned(),
            Ink::Mark => "var(--mark)".to_owned(),
        }
    }
}

/// Text of a chart.
pub(crate) fn text<'a>(size: f64, pos: Pos) -> TextStyle<'a> {
    let font = FontDesc::new(FontFamily::SansSerif, size, FontStyle::Normal);
    TextStyle { font, color: Ink::Text.color().to_backend_color(), pos }
}

/// Centered in height, to the left or right of its point.
pub(crate) fn beside(h_pos: text_anchor::HPos) -> Pos {
    Pos::new(h_pos, text_anchor::VPos::Center)
}

/// About how wide the widest of these texts is in pixels; the page's font is the reader's, so to be safe.
pub(crate) fn width<'a>(texts: impl Iterator<Item = &'a str>, size: f64) -> u32 {
    let longest = texts.map(|text| text.chars().count()).max().unwrap_or(0);
    (longest as f64 * size * 0.58).ceil() as u32
}

/// A number at an axis: no zeros that say nothing.
pub(crate) fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A finished drawing for a page: stand-ins replaced, and named for those who cannot see it.
pub(crate) fn finish(svg: &str, title: &str) -> String {
    let inks = (0..SERIES).map(Ink::Series).chain([Ink::Text, Ink::Grid, Ink::Mark]);
    let svg = inks.fold(svg.to_owned(), |svg, ink| {
        let RGBColor(r, g, b) = ink.color();
        svg.replace(&format!("#{r:02X}{g:02X}{b:02X}"), &ink.variable())
    });
    let label = format!("<svg role=\"img\" aria-label=\"{}\" ", escape(title));
    svg.replacen("<svg ", &label, 1)
}

/// Text that stands in a page as it is.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stand_ins_become_variables() {
        let svg = "<svg width=\"1\"><rect fill=\"#A00003\"/><text fill=\"#B00001\"/></svg>";
        let expected = "<svg role=\"img\" aria-label=\"a &lt; b\" width=\"1\"><rect fill=\"var(--s3)\"/>\
                        <text fill=\"var(--text)\"/></svg>";
        assert_eq!(finish(svg, "a < b"), expected);
    }
}
