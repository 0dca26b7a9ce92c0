//! The address of a Redis, of a cluster, or of the sentinels of one, as people write it.
//!
//! An address may hold a password, so no error repeats any part of it.

use std::sync::Arc;

use redis::{ConnectionInfo, IntoConnectionInfo};

use super::fault::without_detail;
use super::server::{Sentinels, Server};
use crate::policy::ConfigError;

const KINDS: &str = "redis://, rediss://, unix://, redis+unix://, redis-cluster://, rediss-cluster://, \
                     redis-sentinel:// or rediss-sentinel://";

pub(super) fn read(url: &str) -> Result<Server, ConfigError> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| fault(&format!("must begin with {KINDS}")))?;
    let scheme = scheme.to_ascii_lowercase();
    let (base, kind) = scheme.split_once('-').unwrap_or((&scheme, ""));
    match (base, kind) {
        ("redis" | "rediss" | "valkey" | "valkeys", "") => {
            check_options(rest, &["protocol"])?;
            Ok(Server::one(node(&format!("{base}://{rest}"))?, protocol_stated(rest)))
        }
        ("unix" | "redis+unix" | "valkey+unix", "") => {
            check_options(rest, &["db", "user", "pass", "protocol"])?;
            Ok(Server::one(node(&format!("{base}://{rest}"))?, protocol_stated(rest)))
        }
        ("redis" | "rediss" | "valkey" | "valkeys", "cluster") => {
            check_options(rest, &["protocol"])?;
            let many = Many::split(rest)?;
            let tail = format!("{}{}", many.path, many.options);
            Server::cluster(many.nodes(base, 6379, &tail)?).map_err(|error| fault(&without_detail(&error)))
        }
        ("redis" | "rediss" | "valkey" | "valkeys", "sentinel") => sentinel(base, rest),
        _ => Err(fault(&format!("must begin with {KINDS}"))),
    }
}

fn sentinel(base: &str, rest: &str) -> Result<Server, ConfigError> {
    check_options(rest, &["protocol", "sentinel_user", "sentinel_password"])?;
    let many = Many::split(rest)?;
    let mut path = many.path.trim_matches('/').split('/');
    let master = path.next().filter(|name| !name.is_empty()).ok_or_else(|| {
        fault(
            "names no master: redis-sentinel://host:26379,host:26379/NAME, with the name the sentinels know",
        )
    })?;
    let db = path.next().unwrap_or_default();
    if path.next().is_some() {
        return Err(fault("has more after the master's name and the database"));
    }
    // For its user, password, database and protocol only.
    let model = node(&format!("{base}://{}localhost/{db}{}", many.user, many.options))?;
    let hosts = many.nodes_without_user(base, 26379)?;
    Ok(Server::Sentinels(Box::new(Sentinels {
        hosts: hosts.iter().map(|host| host.addr().clone()).collect(),
        master: decoded(master),
        with_tls: is_tls(base),
        redis: model.redis_settings().clone(),
        protocol_stated: protocol_stated(rest),
        user: option(rest, "sentinel_user"),
        password: option(rest, "sentinel_password"),
        turn: Arc::default(),
    })))
}

fn is_tls(base: &str) -> bool {
    matches!(base, "rediss" | "valkeys")
}

/// An address of several hosts.
struct Many<'a> {
    /// User and password with their `@`, or nothing.
    user: &'a str,
    hosts: Vec<&'a str>,
    path: &'a str,
    /// With its `?`, or nothing.
    options: &'a str,
}

impl<'a> Many<'a> {
    fn split(rest: &'a str) -> Result<Self, ConfigError> {
        let (rest, options) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (user, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        let hosts = hosts.split(',').map(str::trim).filter(|host| !host.is_empty()).collect::<Vec<_>>();
        if hosts.is_empty() {
            return Err(fault("names no host"));
        }
        Ok(Self { user, hosts, path, options })
    }

    fn nodes(&self, base: &str, port: u16, tail: &str) -> Result<Vec<ConnectionInfo>, ConfigError> {
        let nodes =
            self.hosts.iter().map(|host| node(&format!("{base}://{}{}{tail}", self.user, at(host, port))));
        nodes.collect()
    }

    fn nodes_without_user(&self, base: &str, port: u16) -> Result<Vec<ConnectionInfo>, ConfigError> {
        self.hosts.iter().map(|host| node(&format!("{base}://{}", at(host, port)))).collect()
    }
}

/// With the port where none is stated: `a`, `a:1`, `[::1]`, `[::1]:1`.
fn at(host: &str, port: u16) -> String {
    let after = host.rfind(']').map_or(0, |end| end + 1);
    if host[after..].contains(':') { host.to_owned() } else { format!("{host}:{port}") }
}

fn node(url: &str) -> Result<ConnectionInfo, ConfigError> {
    url.into_connection_info().map_err(|error| {
        let why = without_detail(&error);
        fault(&format!(
            "was not understood ({why}); a `/`, `@`, `:`, `?`, `#` or `%` in user or password has to be percent-encoded"
        ))
    })
}

/// An option that nobody reads would look like one that works.
fn check_options(rest: &str, known: &[&str]) -> Result<(), ConfigError> {
    if rest.contains('#') {
        // `#insecure`, which `redis` knows, would need a feature of it that is off.
        return Err(fault(
            "has a `#`; a certificate is always checked, and a `#` in a password is written %23",
        ));
    }
    let options = rest.split_once('?').map_or("", |(_, options)| options);
    for name in options.split('&').filter(|option| !option.is_empty()) {
        let name = name.split('=').next().unwrap_or_default();
        if !known.contains(&name) {
            return Err(fault(&format!("has an option that is none of: {}", known.join(", "))));
        }
    }
    Ok(())
}

fn option(rest: &str, name: &str) -> Option<String> {
    let options = rest.split_once('?')?.1;
    let mut values = options.split('&').filter_map(|option| option.split_once('='));
    values.find(|(option, _)| *option == name).map(|(_, value)| decoded(value))
}

fn protocol_stated(rest: &str) -> bool {
    option(rest, "protocol").is_some()
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let code = after.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match code.filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn fault(fault: &str) -> ConfigError {
    ConfigError::Store { field: "url", fault: fault.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(url: &str) -> String {
        format!("{:?}", read(url).unwrap_or_else(|error| panic!("{url}: {error}")))
    }

    #[test]
    fn each_kind_of_address() {
        assert_eq!(server("redis://localhost"), "localhost:6379");
        assert_eq!(server("REDIS://user:p%40ss@10.0.0.1:7000/3?protocol=3"), "10.0.0.1:7000");
        assert_eq!(server("redis://[::1]:7000"), "::1:7000");
        assert_eq!(server("rediss://redis.example.com"), "redis.example.com:6379");
        assert_eq!(server("unix:///run/redis.sock?db=1&user=u&pass=secret"), "/run/redis.sock");
        assert_eq!(server("redis+unix:///run/redis.sock"), "/run/redis.sock");
        assert_eq!(server("valkey://localhost"), "localhost:6379");
        assert_eq!(server("redis-cluster://u:p@a:7000,b:7001,c"), r#"["a:7000", "b:7001", "c:6379"]"#);
        assert_eq!(server("rediss-cluster://a,[::1],[::2]:7"), r#"["a:6379", "::1:6379", "::2:7"]"#);
        assert_eq!(server("redis-sentinel://:p@a,b:1/main/2"), r#"main of ["a:26379", "b:1"]"#);
        assert_eq!(
            server("rediss-sentinel://a/main?sentinel_user=u&sentinel_password=p"),
            r#"main of ["a:26379"]"#
        );
    }

    #[test]
    fn a_sentinel_address_in_full() {
        let url = "rediss-sentinel://u:p%2F@a,b/my%20main/2?protocol=2&sentinel_user=s&sentinel_password=%3F";
        let Ok(Server::Sentinels(sentinels)) = read(url) else { panic!("sentinels") };
        assert_eq!(
            (sentinels.master.as_str(), sentinels.with_tls, sentinels.hosts.len()),
            ("my main", true, 2)
        );
        assert_eq!((sentinels.redis.username(), sentinels.redis.password()), (Some("u"), Some("p/")));
        assert_eq!((sentinels.redis.db(), sentinels.protocol_stated), (2, true));
        assert_eq!((sentinels.user.as_deref(), sentinels.password.as_deref()), (Some("s"), Some("?")));
    }

    #[test]
    fn what_is_wrong_is_said_without_the_secret() {
        for (url, says) in [
            ("localhost:6379", "must begin with redis://"),
            ("http://u:secret@localhost", "must begin with redis://"),
            ("redis-ring://u:secret@localhost", "must begin with redis://"),
            ("redis://u:secret@", "was not understood"),
            ("redis://u:sec#ret@localhost", "a `#` in a password is written %23"),
            ("redis://u:sec/secret@localhost", "percent-encoded"),
            ("redis://u:secret@localhost/db", "Invalid database number"),
            ("redis://u:secret@localhost:port", "percent-encoded"),
            ("redis://u:secret@localhost?protocol=secret", "Invalid protocol version"),
            ("redis://u:secret@localhost?timeout=1", "none of: protocol"),
            ("rediss://u:secret@localhost/#insecure", "a certificate is always checked"),
            ("unix://?pass=secret", "Missing path"),
            ("unix:///a?password=secret", "none of: db, user, pass, protocol"),
            ("redis-cluster://u:secret@", "names no host"),
            ("redis-cluster://u:secret@a,b/x", "Invalid database number"),
            ("redis-sentinel://u:secret@a,b", "names no master"),
            ("redis-sentinel://u:secret@a/main/0/1", "more after the master's name"),
            ("redis-sentinel://u:secret@0.0.0.0/main", "wildcard"),
        ] {
            let error = read(url).map(|_| ()).expect_err(url).to_string();
            assert!(error.starts_with("store: url ") && error.contains(says), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
