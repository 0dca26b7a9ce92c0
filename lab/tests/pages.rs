//! The pages in a real browser: all charts are there, and nothing is wrong with them.
//!
//! Needs chromium (`apt-get install chromium`); without it the pages are read as text only.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a command of the lab, and gives the page that it wrote.
fn page(name: &str, arguments: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("page-{name}"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_forbear-lab"));
    let output = command.arg(name).args(arguments).arg("--out").arg(&folder).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    folder.join(name).with_extension("html")
}

fn browser() -> Option<&'static str> {
    let found =
        |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|it| it.status.success());
    ["chromium", "chromium-browser", "google-chrome"].into_iter().find(found)
}

/// The page as a browser has it, and what it complained about.
fn open(page: &Path) -> (String, String) {
    let Some(browser) = browser() else {
        eprintln!("no chromium here: the page is not opened");
        return (std::fs::read_to_string(page).expect("the page is there"), String::new());
    };
    let profile = page.with_extension("profile");
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--enable-logging=stderr", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("the browser starts");
    let log = String::from_utf8_lossy(&output.stderr);
    let complaints = log.lines().filter(|line| line.contains("CONSOLE")).collect::<Vec<_>>().join("\n");
    (String::from_utf8_lossy(&output.stdout).into_owned(), complaints)
}

fn check(page: &Path, titles: &[&str]) {
    let (dom, complaints) = open(page);
    assert_eq!(complaints, "", "the console is quiet");
    let charts = dom.matches("<svg role=\"img\"").count();
    assert!(charts >= titles.len(), "{charts} charts in {}", page.display());
    for title in titles {
        assert!(dom.contains(&format!("aria-label=\"{title}")), "no chart `{title}` in {}", page.display());
    }
    assert!(dom.contains("prefers-color-scheme: dark"), "it is readable in the dark");
    assert!(!dom.contains("#A000") && !dom.contains("#B000"), "every colour is one of the page's");
    assert!(!dom.contains("NaN") && !dom.contains("inf"), "every figure is a number");
    assert!(
        !dom.contains("http://")
            || dom.matches("http://www.w3.org").count() == dom.matches("http://").count()
    );
}

#[test]
fn the_load_test_has_its_charts() {
    let page = page("algorithms", &["--quick"]);
    check(&page, &["Most in any one second, scenario 1", "sliding log: admitted in the last second"]);
}

#[test]
fn the_fleet_has_its_charts() {
    let page = page("fleet", &["--quick", "--only", "forbear, one process"]);
    check(&page, &["Time over ideal: token bucket, even", "Admitted in the last second", "What a call took"]);
}

#[test]
fn a_simulation_has_its_charts() {
    let page = page("simulate", &["--limit", "50/s", "--workers", "10", "--calls", "200"]);
    check(&page, &["Admissions over time", "How long calls waited", "What they waited for"]);
}
