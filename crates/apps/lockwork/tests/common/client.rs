//! A client of the protocol, for several tests: it sends bytes, and shows what comes.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;

use crate::server::Server;

/// A client of the protocol's simple queries.
pub(crate) struct Client(pub(crate) BufReader<TcpStream>);

impl Client {
    pub(crate) fn of(server: &Server) -> Self {
        Self::new(server.port).unwrap()
    }

    pub(crate) fn new(port: u16) -> std::io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        let mut client = Self(BufReader::new(stream));
        client.0.get_mut().write_all(&startup("ann"))?;
        let answers = client.answers()?;
        match answers.iter().find(|(kind, _)| *kind == b'E') {
            Some((_, error)) => Err(std::io::Error::other(fields(error))),
            None => Ok(client),
        }
    }

    /// The messages until the server is ready for the next query, or has gone.
    pub(crate) fn answers(&mut self) -> std::io::Result<Vec<(u8, Vec<u8>)>> {
        let mut answers = Vec::new();
        loop {
            let mut head = [0; 5];
            if let Err(error) = self.0.read_exact(&mut head) {
                return if answers.is_empty() { Err(error) } else { Ok(answers) };
            }
            let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize - 4;
            let mut body = vec![0; length];
            self.0.read_exact(&mut body)?;
            answers.push((head[0], body));
            if head[0] == b'Z' {
                return Ok(answers);
            }
        }
    }

    /// What a query answers: rows and tags, a line each, or the error.
    pub(crate) fn query(&mut self, text: &str) -> std::io::Result<String> {
        self.ask(&message(b'Q', &[text.as_bytes(), b"\0"].concat()))
    }

    /// Prepares a statement without a name, asks what it is, and runs it with values in text.
    pub(crate) fn prepared(&mut self, text: &str, values: &[&str]) -> std::io::Result<String> {
        let parse = [b"\0", text.as_bytes(), b"\0\0\0"].concat();
        self.ask(&[message(b'P', &parse), message(b'D', b"S\0"), bind(values), execute(0), message(b'S', b"")].concat())
    }

    /// What messages are answered with, up to the next one that says that the server is ready.
    pub(crate) fn ask(&mut self, messages: &[u8]) -> std::io::Result<String> {
        self.0.get_mut().write_all(messages)?;
        let mut lines = Vec::new();
        for (kind, body) in self.answers()? {
            match kind {
                b'D' => lines.push(cells(&body).join("|")),
                b'C' => lines.push(String::from_utf8_lossy(&body).trim_end_matches('\0').to_string()),
                b'E' => lines.push(fields(&body)),
                b't' => lines.push(format!("takes {:?}", numbers(&body))),
                b's' => lines.push("more".into()),
                _ => {}
            }
        }
        Ok(lines.join("\n"))
    }
}

/// What a client begins with.
pub(crate) fn startup(user: &str) -> Vec<u8> {
    let words = format!("user\0{user}\0database\0bank\0\0");
    [&(words.len() as u32 + 8).to_be_bytes(), &196_608_u32.to_be_bytes(), words.as_bytes()].concat()
}

pub(crate) fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
}

/// Binds the statement without a name to values in text.
pub(crate) fn bind(values: &[&str]) -> Vec<u8> {
    let mut body = vec![0, 0, 0, 0];
    body.extend((values.len() as u16).to_be_bytes());
    for value in values {
        body.extend((value.len() as u32).to_be_bytes());
        body.extend(value.as_bytes());
    }
    body.extend([0, 0]);
    message(b'B', &body)
}

/// Runs the portal without a name, for so many rows at most.
pub(crate) fn execute(most: u32) -> Vec<u8> {
    message(b'E', &[&b"\0"[..], &most.to_be_bytes()].concat())
}

/// The types of parameters.
fn numbers(body: &[u8]) -> Vec<u32> {
    body[2..].chunks_exact(4).map(|oid| u32::from_be_bytes(oid.try_into().unwrap())).collect()
}

fn cells(mut body: &[u8]) -> Vec<String> {
    let count = u16::from_be_bytes(body[..2].try_into().unwrap());
    body = &body[2..];
    let mut cell = || {
        let length = u32::from_be_bytes(body[..4].try_into().unwrap()) as usize;
        let text = String::from_utf8_lossy(&body[4..4 + length]).into_owned();
        body = &body[4 + length..];
        text
    };
    (0..count).map(|_| cell()).collect()
}

/// Severity, SQLSTATE and message of an error.
pub(crate) fn fields(body: &[u8]) -> String {
    let fields = body.split(|&byte| byte == 0).filter(|field| matches!(field.first(), Some(b'S' | b'C' | b'M')));
    fields.map(|field| String::from_utf8_lossy(&field[1..]).into_owned()).collect::<Vec<_>>().join(" ")
}
