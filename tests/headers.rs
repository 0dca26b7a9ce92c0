//! Responses as real servers send them, and what they mean: every case of `cases/headers.json` is a test
//! of its own, named by its id.

use std::time::{Duration, SystemTime};

use forbear::{Profile, Signals};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;

fn main() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("cases/headers.json")).expect("cases are JSON");
    let trials = cases.into_iter().map(|case| {
        let id = case["id"].as_str().expect("a case has an id").to_owned();
        Trial::test(id, move || check(&case))
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}

fn check(case: &Value) -> Result<(), Failed> {
    let response = Response::of(case)?;
    let expect = &case["expect"];
    let profile = match expect["needs_profile"].as_str() {
        Some(name) => name.parse::<Profile>()?,
        None => Profile::Generic,
    };
    let headers_only = response.read(profile);
    let signals = match &response.body {
        Some(body) => headers_only.clone().with_body(body.as_bytes()),
        None => headers_only.clone(),
    };

    let binding = signals.binding();
    let mut answer = Answer::of(&signals);
    answer.same(expect, "wait_ms", "source", "class")?;
    answer.same_where_stated(expect, "retry", signals.should_retry().map(Value::from))?;
    answer.same_where_stated(expect, "limit", binding.and_then(|budget| budget.limit()).map(Value::from))?;
    answer.same_where_stated(
        expect,
        "remaining",
        binding.and_then(|budget| budget.remaining()).map(Value::from),
    )?;
    answer.same_where_stated(expect, "reset_ms", binding.and_then(|budget| budget.reset()).map(millis))?;
    answer.same_where_stated(
        expect,
        "quota_unit",
        binding.and_then(|budget| budget.unit()).map(Value::from),
    )?;
    if expect.get("repair_wait_ms").is_some() {
        answer.same_where_stated(expect, "repair_wait_ms", signals.repaired_wait().map(millis))?;
    } else if signals.repaired_wait() != signals.wait() {
        return Err("a repair where there is nothing to repair".into());
    }

    if expect["needs_body"] == true {
        if headers_only.source() == forbear::Source::Body || headers_only.should_retry().is_some() {
            return Err("the body spoke before it was read".into());
        }
    } else if response.body.is_some() {
        answer = Answer::of(&headers_only);
        answer
            .same(expect, "wait_ms", "source", "class")
            .map_err(|e| format!("headers alone: {}", message(e)))?;
    }
    if profile != Profile::Generic {
        let mut generic = response.read(Profile::Generic);
        if let Some(body) = &response.body {
            generic = generic.with_body(body.as_bytes());
        }
        let class = if expect.get("generic_class").is_some() { "generic_class" } else { "class" };
        let answer = Answer::of(&generic);
        answer
            .same(expect, "generic_wait_ms", "generic_source", class)
            .map_err(|e| format!("without the profile: {}", message(e)))?;
    }
    Ok(())
}

fn message(failed: Failed) -> String {
    failed.message().unwrap_or("failed").to_owned()
}

struct Answer {
    wait: Value,
    source: Value,
    class: Value,
}

impl Answer {
    fn of(signals: &Signals) -> Self {
        Self {
            wait: signals.wait().map_or(Value::Null, millis),
            source: signals.source().to_string().into(),
            class: signals.class().to_string().into(),
        }
    }

    fn same(&self, expect: &Value, wait: &str, source: &str, class: &str) -> Result<(), Failed> {
        for (name, got) in [(wait, &self.wait), (source, &self.source), (class, &self.class)] {
            let right = expect.get(name).ok_or_else(|| format!("the case states no {name}"))?;
            if right != got {
                return Err(format!("{name}: expected {right}, got {got}").into());
            }
        }
        Ok(())
    }

    fn same_where_stated(&self, expect: &Value, name: &str, got: Option<Value>) -> Result<(), Failed> {
        let got = got.unwrap_or(Value::Null);
        match expect.get(name) {
            Some(right) if *right != got => Err(format!("{name}: expected {right}, got {got}").into()),
            _ => Ok(()),
        }
    }
}

fn millis(time: Duration) -> Value {
    u64::try_from(time.as_millis()).expect("a wait ends at 2^31 s").into()
}

struct Response {
    status: StatusCode,
    headers: HeaderMap,
    body: Option<String>,
    received_at: SystemTime,
}

impl Response {
    fn of(case: &Value) -> Result<Self, Failed> {
        let mut headers = HeaderMap::new();
        for header in case["headers"].as_array().ok_or("headers are a list")? {
            let (name, value) = (header[0].as_str().ok_or("a name")?, header[1].as_str().ok_or("a value")?);
            headers
                .append(HeaderName::from_bytes(name.as_bytes())?, HeaderValue::from_bytes(value.as_bytes())?);
        }
        let status = case["status"].as_u64().ok_or("a status")?;
        Ok(Self {
            status: StatusCode::from_u16(u16::try_from(status)?)?,
            headers,
            body: case["body"].as_str().map(ToOwned::to_owned),
            received_at: wall_clock(case["received_at"].as_str().ok_or("an instant")?)?,
        })
    }

    fn read(&self, profile: Profile) -> Signals {
        Signals::read_as(profile, self.status, &self.headers, self.received_at)
    }
}

/// Reads `2026-11-29T12:00:00.400Z` without the code under test.
fn wall_clock(text: &str) -> Result<SystemTime, Failed> {
    let numbers: Vec<u64> = text
        .split(['-', 'T', ':', '.', 'Z'])
        .filter(|part| !part.is_empty())
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let [year, month, day, hour, minute, second] = numbers[..6] else {
        return Err("a date and a time".into());
    };
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let february = if is_leap(year) { 29 } else { 28 };
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let years: u64 = (1970..year).map(|year| if is_leap(year) { 366 } else { 365 }).sum();
    let months: u64 = lengths.iter().take(usize::try_from(month)? - 1).sum();
    let seconds = (((years + months + day - 1) * 24 + hour) * 60 + minute) * 60 + second;
    let millis = numbers.get(6).copied().unwrap_or(0);
    Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_millis(millis))
}
