//! The least of a Redis client: one question, one answer, over a socket.
//!
//! In an unoptimised build the parser of the real client takes longer than Redis does, and ten thousand walks have to
//! be made within a minute.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;

use redis::Value;

use crate::store::redis::server_for_tests::RedisServer;

pub(super) struct Talk {
    socket: BufReader<UnixStream>,
    line: Vec<u8>,
}

impl Talk {
    pub(super) fn with(server: &RedisServer) -> Self {
        let socket = UnixStream::connect(server.socket()).expect("the server listens");
        Self { socket: BufReader::with_capacity(1 << 16, socket), line: Vec::new() }
    }

    /// Panics at an error: no test asks for one.
    pub(super) fn ask<'a>(&mut self, words: impl Iterator<Item = &'a [u8]>) -> Value {
        let (mut count, mut body) = (0, Vec::with_capacity(4_096));
        for word in words {
            count += 1;
            body.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            body.extend_from_slice(word);
            body.extend_from_slice(b"\r\n");
        }
        let head = format!("*{count}\r\n");
        self.socket.get_mut().write_all(&[head.as_bytes(), &body].concat()).expect("the server reads");
        self.answer()
    }

    pub(super) fn answer(&mut self) -> Value {
        self.line.clear();
        self.socket.read_until(b'\n', &mut self.line).expect("the server answers");
        let text = std::str::from_utf8(&self.line[1..]).expect("a line of text").trim_end();
        match self.line[0] {
            b'+' => Value::SimpleString(text.to_owned()),
            b':' => Value::Int(text.parse().expect("a number")),
            b'$' | b'*' if text == "-1" => Value::Nil,
            b'$' => {
                let mut bytes = vec![0; text.parse::<usize>().expect("a length") + 2];
                self.socket.read_exact(&mut bytes).expect("as many bytes as were announced");
                bytes.truncate(bytes.len() - 2);
                Value::BulkString(bytes)
            }
            b'*' => {
                let count = text.parse::<usize>().expect("a count");
                Value::Array((0..count).map(|_| self.answer()).collect())
            }
            _ => panic!("{text}"),
        }
    }
}
