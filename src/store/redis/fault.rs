//! What an error of the connection means for the calls after it.
//!
//! A server that runs a script before 7.0 puts the script's error behind its own, as `ERR Error running script
//! ..: -OOM ..`, so a code is looked for in the text, too.

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// The codes after which no call can do better until something changes, and what each one means.
const REFUSALS: [(&str, &str); 13] = [
    ("READONLY", "the server is a read-only replica"),
    ("OOM", "the server is out of memory (maxmemory) and takes no writes"),
    ("LOADING", "the server is loading its data"),
    ("MASTERDOWN", "the server is a replica that lost its master"),
    ("CLUSTERDOWN", "the cluster is down"),
    ("NOPERM", "the user may not run what is needed"),
    ("NOAUTH", "the server wants a password"),
    ("WRONGPASS", "the server does not know this user and password"),
    ("MISCONF", "the server cannot save its data and takes no writes"),
    ("BUSY", "the server is busy with a script"),
    ("NOREPLICAS", "the server has too few replicas to take writes"),
    ("MOVED", "the server is part of a cluster: its address begins with redis-cluster://"),
    ("CROSSSLOT", "the server is part of a cluster: its address begins with redis-cluster://"),
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// The connection is gone; what was under way may or may not have been done.
    Broken(String),
    /// The server answers, and decides nothing for anybody.
    Refuses(String),
    /// This one call failed for what it asked; others may not.
    Call(String),
    /// This one call was not done, or it is not known whether it was; the next one may be.
    Lost(&'static str),
}

impl Fault {
    pub(super) fn of(error: &RedisError) -> Self {
        let text = format!("{} {}", error.code().unwrap_or(""), error.detail().unwrap_or(""));
        if let Some((code, meaning)) = REFUSALS.iter().find(|(code, _)| names(&text, code)) {
            return Self::Refuses(format!("{code}: {meaning}"));
        }
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::ResponseError) if is_unknown_command(&text) => Self::Refuses(
                "the server knows no scripts (EVAL and EVALSHA): they are switched off, or left out of it"
                    .into(),
            ),
            ErrorKind::Server(ServerErrorKind::TryAgain) => {
                Self::Lost("the cluster is just moving these keys to another node")
            }
            ErrorKind::AuthenticationFailed => {
                Self::Refuses("the server refused the user or the password".into())
            }
            ErrorKind::InvalidClientConfig => Self::Refuses(without_detail(error)),
            ErrorKind::Io
            | ErrorKind::Parse
            | ErrorKind::Client
            | ErrorKind::ClusterConnectionNotFound
            | ErrorKind::MasterNameNotFoundBySentinel
            | ErrorKind::NoValidReplicasFoundBySentinel
            | ErrorKind::EmptySentinelList => Self::Broken(error.to_string()),
            _ => Self::Call(error.to_string()),
        }
    }

    pub(super) fn text(&self) -> &str {
        match self {
            Self::Broken(text) | Self::Refuses(text) | Self::Call(text) => text,
            Self::Lost(text) => text,
        }
    }
}

/// Whether a code stands alone in an error's text: as its first word, or as that of an error inside it.
fn names(text: &str, code: &str) -> bool {
    text.split([' ', ':']).any(|word| word == code || word.strip_prefix('-') == Some(code))
}

fn is_unknown_command(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    text.contains("unknown command") && (text.contains("eval") || text.contains("script"))
}

/// Why a client's own settings are no good, without the words that may repeat them.
pub(super) fn without_detail(error: &RedisError) -> String {
    let text = error.to_string();
    text.split(" - ").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Fault {
        let value = redis::parse_redis_value(line.as_bytes()).expect("a reply");
        Fault::of(&value.extract_error().expect_err("an error"))
    }

    #[test]
    fn a_code_is_found_behind_the_error_of_an_older_server() {
        let older = "-ERR Error running script (call to f_2a): @user_script:1: -OOM command not allowed when used memory > 'maxmemory'.\r\n";
        assert!(matches!(of(older), Fault::Refuses(text) if text.starts_with("OOM")));
        let older = "-ERR Error running script (call to f_2a): @user_script: 1: @user_script: 1: -READONLY You can't write against a read only replica.\r\n";
        assert!(matches!(of(older), Fault::Refuses(text) if text.starts_with("READONLY")));
    }

    #[test]
    fn each_code_says_what_it_means() {
        for line in [
            "-READONLY You can't write against a read only replica.\r\n",
            "-OOM command not allowed when used memory > 'maxmemory'. script: 2a, on @user_script:1.\r\n",
            "-LOADING Redis is loading the dataset in memory\r\n",
            "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
            "-NOPERM User limited has no permissions to run the 'eval' command\r\n",
            "-NOAUTH Authentication required.\r\n",
            "-WRONGPASS invalid username-password pair or user is disabled.\r\n",
            "-MISCONF Redis is configured to save RDB snapshots\r\n",
            "-BUSY Redis is busy running a script.\r\n",
            "-MOVED 1234 127.0.0.1:7001\r\n",
            "-CROSSSLOT Keys in request don't hash to the same slot\r\n",
            "-CLUSTERDOWN Hash slot not served\r\n",
        ] {
            assert!(matches!(of(line), Fault::Refuses(_)), "{line}");
        }
    }

    #[test]
    fn a_server_without_scripts_is_named_as_one() {
        let fault = of("-ERR unknown command 'EVALSHA', with args beginning with: 'abc' '1' \r\n");
        assert!(matches!(fault, Fault::Refuses(text) if text.contains("scripts")));
    }

    #[test]
    fn what_is_wrong_with_one_call_is_no_outage() {
        for line in [
            "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
            "-ERR user_script:3: attempt to compare nil with number script: 2a, on @user_script:3.\r\n",
            "-ERR value is not an integer or out of range\r\n",
        ] {
            assert!(matches!(of(line), Fault::Call(_)), "{line}");
        }
    }
}
