//! The figures of the documentation: everything is run, and what came out is written where it is quoted.
//!
//! No figure in README.md or lab/RESULTS.md is typed; between its markers the README's section is replaced,
//! and lab/RESULTS.md is written anew.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};

use crate::cli::{FleetArgs, Settings};
use crate::simulate::SimulateArgs;
use crate::terminal::Grid;
use crate::{algorithms, fleet, simulate};

const BEGIN: &str = "<!-- figures: begin; written by `cargo run --release -p forbear-lab -- report` -->";
const END: &str = "<!-- figures: end -->";

/// Runs all commands and writes both texts.
pub(crate) fn command(settings: &Settings) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the lab lies in its workspace");
    let runtime = tokio::runtime::Runtime::new()?;
    let load_test = runtime.block_on(algorithms::command(settings))?;
    let fleet_args = FleetArgs { only: Vec::new(), side_by_side: FleetArgs::SIDE_BY_SIDE };
    let fleet = runtime.block_on(fleet::command(settings, &fleet_args))?;
    drop(runtime);
    let million = SimulateArgs::a_million();
    let simulated = simulate::command(settings, &million)?;
    let written = Written {
        headline: fleet::headline(&fleet),
        load_test: algorithms::grids(&load_test),
        matrices: [fleet::matrices(&fleet), fleet::promises(&fleet)].concat(),
        details: fleet::details_of_all(&fleet),
        notes: fleet.notes(),
        simulated: simulate::grids(&simulated, &million.lead()?),
    };
    let readme = root.join("README.md");
    let text =
        std::fs::read_to_string(&readme).with_context(|| format!("cannot read {}", readme.display()))?;
    std::fs::write(&readme, replace(&text, &written.section(&algorithms::headline(&load_test)))?)?;
    std::fs::write(root.join("lab/RESULTS.md"), written.results())?;
    if !settings.json {
        println!("written: README.md, lab/RESULTS.md");
    }
    Ok(())
}

/// What is quoted.
struct Written {
    headline: Grid,
    load_test: Vec<Grid>,
    matrices: Vec<Grid>,
    details: Vec<Grid>,
    /// What is to be known of the fleet.
    notes: Vec<String>,
    simulated: Vec<Grid>,
}

impl Written {
    /// The README's section.
    fn section(&self, load_test: &Grid) -> String {
        let mut text = String::from(
            "Eight clients of sixteen tasks have 2,000 calls to make to a server that allows 200 a second with a \
             burst of\n20, and answers `429` with `Retry-After: 1`. Time is over the least in which the server \
             would let all of them through.\n\n",
        );
        text += &self.headline.markdown();
        text += "\nWhat the backend really sees in its busiest second, with a budget of 10 a second, is the other \
                 half of the lab:\n\n";
        text += &load_test.markdown();
        text += "\nEvery figure is printed by `cargo run --release -p forbear-lab -- report`; all of them, with \
                 those in which a peer\nis better, are in [lab/RESULTS.md](lab/RESULTS.md). Your own policy under \
                 your own load, in virtual time:\n`cargo run --release -p forbear-lab -- simulate --limit 500/min \
                 --workers 50 --calls 5000`.\n";
        text
    }

    /// The whole of lab/RESULTS.md.
    fn results(&self) -> String {
        let mut text = String::from(
            "# Results of the lab\n\nWritten by `cargo run --release -p forbear-lab -- report`, which takes some \
             half an hour; nothing here is typed.\nTimes are of one machine, so small differences mean nothing: of \
             one run each, but of the middle one of three where the\nquota is not as the clients were told, and of \
             the least disturbed of several where the machine stood still meanwhile.\nBold is what is not as it \
             must be.\n",
        );
        let chapters = [
            ("What each limiter lets through", &self.load_test, &[][..]),
            ("A fleet beside its peers", &self.matrices, &self.notes[..]),
            ("The fleet in full", &self.details, &[]),
            ("A million calls in virtual time", &self.simulated, &[]),
        ];
        for (title, grids, notes) in chapters {
            _ = writeln!(text, "\n## {title}");
            for grid in grids {
                _ = write!(text, "\n### {}\n\n{}", grid.title, grid.markdown());
                grid.notes.iter().for_each(|note| _ = write!(text, "\n{note}\n"));
            }
            if !notes.is_empty() {
                text += "\n### What to know\n\n";
                notes.iter().for_each(|note| _ = writeln!(text, "- {note}"));
            }
        }
        text
    }
}

/// The text with what stands between the markers replaced.
fn replace(text: &str, section: &str) -> Result<String> {
    let (before, rest) =
        text.split_once(BEGIN).context("README.md has lost the marker at which figures begin")?;
    let (_, after) = rest.split_once(END).context("README.md has lost the marker at which figures end")?;
    Ok(format!("{before}{BEGIN}\n\n{section}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_around_the_figures_stays() {
        let text = format!("# Title\n\n{BEGIN}\nold\n{END}\n\n## Next\n");
        let expected = format!("# Title\n\n{BEGIN}\n\nnew\n\n{END}\n\n## Next\n");
        assert_eq!(replace(&text, "new\n").unwrap(), expected);
        assert!(replace("# Title", "new").is_err());
    }

    #[test]
    fn the_readme_has_its_markers() {
        let readme = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("README.md");
        assert!(replace(&std::fs::read_to_string(readme).unwrap(), "new").is_ok());
    }
}
