//! The names of keys in Redis. All keys of one key of one policy share a cluster slot.
//!
//! A name is `prefix:{tag}:part`. The tag is the policy's name, or a hash of it where that is long or holds anything
//! but letters, digits, dots, dashes and underscores, and 96 bits of a hash of policy and key. So nothing that a
//! user's key holds can be read in Redis, and nothing that it or the prefix holds can move a key to another cluster
//! slot. A limit's part is a hash of its name and unit, never of its numbers, for new numbers meet the same state.

use sha1_smol::Sha1;

use crate::decision::Labels;

/// The longest policy name that stands in a key as it is: with it, the default prefix and a small state, a token
/// bucket stays within 120 bytes.
const READABLE: usize = 11;

/// The keys of one key of one policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) pause: String,
    /// By limit, in the policy's order. Under limits of seats more keys begin with this one.
    pub(crate) limits: Box<[String]>,
}

impl Names {
    pub(crate) fn new(prefix: &str, policy: &str, key: &str, labels: &Labels) -> Self {
        let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let policy_part = match policy {
            "" => hash(&[policy], 8),
            readable if readable.len() <= READABLE && readable.chars().all(safe) => readable.to_owned(),
            _ => hash(&[policy], 8),
        };
        let home = format!("{}:{{{policy_part}.{}}}", braceless(prefix), hash(&[policy, key], 16));
        let mut limits = Vec::with_capacity(labels.limits.len());
        for label in &labels.limits {
            let mut name = String::new();
            // Two limits of one policy whose hashes begin alike get more of it.
            for digits in [5, 16, 27] {
                name = format!("{home}:{}", hash(&[&label.name, &label.unit], digits));
                if !limits.contains(&name) {
                    break;
                }
            }
            limits.push(name);
        }
        Self { pause: format!("{home}:p"), limits: limits.into() }
    }

    /// The keys under a limit of seats: leases, sessions and queue.
    pub(super) fn seats(&self, index: usize) -> [String; 3] {
        ["l", "s", "q"].map(|part| format!("{}:{part}", self.limits[index]))
    }

    /// What stands between the braces.
    pub(crate) fn tag(&self) -> &str {
        Self::tag_of(&self.pause).expect("every name has a tag")
    }

    /// The same of any key's name.
    pub(crate) fn tag_of(name: &str) -> Option<&str> {
        Some(name.split_once('{')?.1.split_once('}')?.0)
    }
}

/// A prefix in which the first brace of a name is ours.
fn braceless(prefix: &str) -> String {
    prefix.replace('%', "%25").replace('{', "%7B").replace('}', "%7D")
}

/// The first `digits` of a hash in base 64, of parts that cannot be moved into one another.
fn hash(parts: &[&str], digits: usize) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut sha = Sha1::new();
    for part in parts {
        sha.update(&(part.len() as u64).to_be_bytes());
        sha.update(part.as_bytes());
    }
    let bytes = sha.digest().bytes();
    let bit = |i: usize| bytes.get(i / 8).map_or(0, |byte| byte >> (7 - i % 8) & 1);
    let digit = |i: usize| (6 * i..6 * i + 6).fold(0, |digit, i| digit << 1 | usize::from(bit(i)));
    (0..digits).map(|i| char::from(DIGITS[digit(i)])).collect()
}
