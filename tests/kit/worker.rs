//! A worker process: this target's own binary once more, which runs its test named `worker`, or `main`.
//!
//! What it is to do stands in its environment, under a name that tells one kind of job from another; what it did is
//! one line of its output.

use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// The command that starts one. `under` is a program that runs it elsewhere, with its arguments.
pub fn command(name: &str, job: &str, under: &[&str]) -> Command {
    let binary = std::env::current_exe().expect("this binary");
    let mut command = match under.split_first() {
        Some((program, arguments)) => {
            let mut command = Command::new(program);
            command.args(arguments).arg(binary);
            command
        }
        None => Command::new(binary),
    };
    command.args(["worker", "--exact", "--nocapture", "--test-threads", "1"]);
    command.env(name, job).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command
}

/// One that runs; ended when dropped.
pub struct Process(Option<Child>);

impl Process {
    pub fn start(name: &str, job: &Value, under: &[&str]) -> Self {
        let child = command(name, &job.to_string(), under).spawn();
        Self(Some(child.expect("a worker starts")))
    }

    pub fn signal(&self, signal: &str) {
        let pid = self.0.as_ref().expect("it runs").id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &pid]).status();
        assert!(sent.expect("kill is installed").success());
    }

    /// Waits for its end, and reads what it did.
    pub fn report(mut self) -> Value {
        let output = self.0.take().expect("it runs").wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().find_map(|line| line.split_once("REPORT ").map(|(_, report)| report));
        let report = serde_json::from_str::<Value>(line.unwrap_or_else(|| panic!("no report: {text}")));
        report.expect("a report is JSON")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            _ = child.kill();
            _ = child.wait();
        }
    }
}

/// The worker's side: does what it is told and says what it did. Whether it was told anything.
pub fn work<F: Future<Output = Value>>(name: &str, work: impl FnOnce(Value) -> F) -> bool {
    let Ok(job) = std::env::var(name) else { return false };
    let job = serde_json::from_str::<Value>(&job).expect("a job is JSON");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    println!("REPORT {}", runtime.block_on(work(job)));
    true
}
