//! Pictures: pages of one file each, with charts as SVG, that need no script and no network.
//!
//! Charts are drawn with colours that stand for roles, which `ink` turns into variables of the page's style,
//! so that one drawing is readable in light and in dark.

mod bars;
mod ink;
mod lines;
mod page;

pub(crate) use bars::{Bar, Bars};
pub(crate) use lines::{Line, Lines};
pub(crate) use page::Page;
