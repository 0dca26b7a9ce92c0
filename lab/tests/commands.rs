//! The commands as people run them: quick ones, so that nothing here waits for long or depends on the clock.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A folder of this test's own.
fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    _ = std::fs::remove_dir_all(&folder);
    folder
}

fn lab(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forbear-lab"));
    command.args(arguments).arg("--out").arg(folder).output().expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("it is text")
}

/// Runs a command with `--json`, and gives what it printed.
fn json(test: &str, arguments: &[&str]) -> Value {
    let output = lab(&folder(test), &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("nothing but JSON is printed")
}

const JOB: [&str; 9] =
    ["simulate", "--limit", "100/s burst 10", "--workers", "20", "--calls", "200", "--takes", "5ms to 15ms"];

#[test]
fn virtual_and_real_time_agree() {
    let makespan = |test: &str, arguments: &[&str]| {
        let outcome = json(test, arguments);
        assert_eq!(outcome["admitted"], 200);
        outcome["makespan_us"].as_f64().expect("it is a number")
    };
    let simulated = makespan("virtual", &JOB);
    // A machine that does something else only ever makes the real run longer, so the shortest counts.
    let mut shortest = f64::MAX;
    for turn in 0..5 {
        shortest = shortest.min(makespan(&format!("real-{turn}"), &[&JOB[..], &["--real-time"]].concat()));
        if (shortest / simulated - 1.0).abs() <= 0.02 {
            return;
        }
    }
    panic!("{simulated} us in virtual time, and {shortest} us at the least in real time");
}

#[test]
fn two_runs_in_virtual_time_are_the_same() {
    let run = |test| {
        let mut outcome = json(test, &JOB);
        outcome["real_us"].take();
        outcome
    };
    assert_eq!(run("one"), run("other"));
}

#[test]
fn files_say_what_flags_say() {
    let folder = folder("files");
    std::fs::create_dir_all(&folder).expect("it can be made");
    let (policy, load) = (folder.join("policy.toml"), folder.join("load.toml"));
    std::fs::write(&policy, "limits = [\"100/s burst 10\"]\n").expect("it can be written");
    std::fs::write(&load, "workers = 20\ncalls = 200\ntakes = \"5ms to 15ms\"\n").expect("it can be written");
    let paths = [&policy, &load].map(|path| path.to_str().expect("a path of letters"));
    let from_files = json("files-run", &["simulate", paths[0], paths[1]]);
    assert_eq!(from_files["makespan_us"], json("flags-run", &JOB)["makespan_us"]);
}

#[test]
fn a_simulation_says_what_was_waited_for_and_why_calls_were_refused() {
    let folder = folder("waits");
    let pause = "workers = 40\ncalls = 400\ntakes = \"100ms\"\n[[pause]]\nat = \"2s\"\nlasts = \"3s\"\n";
    std::fs::create_dir_all(&folder).expect("it can be made");
    let load = folder.join("load.toml");
    std::fs::write(&load, pause).expect("it can be written");
    let policy = folder.join("policy.toml");
    std::fs::write(&policy, "limits = [\"100/s burst 10\", \"8 at once\"]\nmax_wait = \"4s\"\n")
        .expect("written");
    let outcome =
        json("waits-run", &["simulate", policy.to_str().expect("letters"), load.to_str().expect("letters")]);
    let waited_for = outcome["waited_for"].as_array().expect("a list");
    let what = waited_for.iter().map(|it| it["what"].as_str().expect("a name")).collect::<Vec<_>>();
    assert!(what.contains(&"at-once") && what.contains(&"a pause"), "{what:?}");
    assert_eq!(outcome["most_at_once"], 8);
    let admitted = outcome["admitted"].as_u64().expect("a number");
    let refused =
        outcome["refused"].as_object().expect("a map").values().filter_map(Value::as_u64).sum::<u64>();
    assert_eq!(admitted + refused, 400);
}

#[test]
fn a_quick_load_test_has_figures_and_a_page() {
    let folder = folder("algorithms");
    let output = lab(&folder, &["algorithms", "--quick"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    for limiter in
        ["fixed window", "sliding log", "token bucket of 10", "leaky bucket, queue 10", "4 at once"]
    {
        assert!(printed.contains(limiter), "{printed}");
    }
    assert!(!printed.contains('\x1b'), "no colours where nobody sees them");
    let figures = std::fs::read_to_string(folder.join("algorithms.json")).expect("the raw figures");
    let figures = serde_json::from_str::<Value>(&figures).expect("JSON");
    let outcomes = figures["outcomes"].as_array().expect("a list");
    assert!(outcomes.iter().all(|it| it["admitted"].as_u64() > Some(0)));
    for (deployment, seats) in [("one", 4), ("two", 8), ("two-on-redis", 4)] {
        let mut runs = outcomes.iter().filter(|it| it["scenario"] == "slow-backend");
        match runs.find(|it| it["deployment"] == deployment) {
            Some(outcome) => assert_eq!(outcome["admitted"], seats, "{deployment}"),
            None => assert!(!has_redis() && deployment == "two-on-redis", "no run of {deployment}"),
        }
    }
    let refused = outcomes.iter().filter(|it| it["refused"].as_u64() > Some(0));
    for outcome in refused {
        assert!(outcome["retry_after"]["none"].is_null(), "each refusal says when to come back: {outcome}");
    }
}

/// Whether there can be runs over Redis.
fn has_redis() -> bool {
    Command::new("redis-server").arg("--version").output().is_ok_and(|it| it.status.success())
}

#[test]
fn a_quick_fleet_on_redis_is_hardly_ever_refused() {
    if !has_redis() {
        eprintln!("no redis-server here: nothing to test");
        return;
    }
    let figures = json("fleet-redis", &["fleet", "--quick", "--only", "shared in Redis"]);
    let outcome = &figures["outcomes"][0];
    assert_eq!((&outcome["done"], &outcome["cut"]), (&outcome["calls"], &Value::Bool(false)), "{outcome}");
    // A busy machine may delay some; without a shared budget it is every third.
    assert!(outcome["refused_per_success"].as_f64() < Some(0.1), "{outcome}");
    assert!(outcome["trips_per_call"].as_f64() < Some(1.0), "{outcome}");
}

#[test]
fn a_quick_fleet_gets_its_job_done_whoever_does_it() {
    let figures = json("fleet", &["fleet", "--quick", "--only", "each"]);
    let outcomes = figures["outcomes"].as_array().expect("a list");
    assert_eq!(outcomes.len(), 6, "this library and two others, each in two ways");
    for outcome in outcomes.iter().filter(|it| it["cut"] == false) {
        assert_eq!(outcome["done"], outcome["calls"], "{outcome}");
    }
}

#[test]
fn what_is_wrong_is_said() {
    let fault = |arguments: &[&str]| {
        let output = lab(&folder("wrong"), arguments);
        assert!(!output.status.success());
        text(&output.stderr)
    };
    assert!(fault(&["simulate"]).contains("states no limit"));
    assert!(fault(&["simulate", "--limit", "many/s"]).contains("many"));
    assert!(fault(&["simulate", "nowhere.toml"]).contains("nowhere.toml"));
    assert!(fault(&["fleet", "--only", "nobody"]).contains("nobody"));
}
