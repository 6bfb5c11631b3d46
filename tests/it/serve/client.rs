//! The smallest HTTP client that can read a watch line by line.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Nothing in these tests may take longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// An answer whose body has not been read.
pub(super) struct Answer {
    pub(super) code: u16,
    pub(super) headers: String,
    stream: BufReader<TcpStream>,
    /// What of the body was read and not yet asked for.
    body: Vec<u8>,
}

/// Sends a request and reads the head of its answer.
pub(super) async fn send(address: SocketAddr, method: &str, target: &str, headers: &[&str]) -> Answer {
    let stream = TcpStream::connect(address).await.expect("the server listens");
    let mut stream = BufReader::new(stream);
    let mut request = format!("{method} {target} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|line| line.starts_with("Host:")) {
        request.push_str("Host: localhost\r\n");
    }
    for line in headers {
        request.push_str(line);
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    stream.get_mut().write_all(request.as_bytes()).await.expect("the server reads");
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let read = timeout(PATIENCE, stream.read_line(&mut head)).await.expect("a head in time").expect("a head");
        assert!(read > 0, "the connection ended in the head: {head}");
    }
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a code");
    Answer { code, headers: head.to_lowercase(), stream, body: Vec::new() }
}

/// GET with an Accept header; code and JSON.
pub(super) async fn get_as(address: SocketAddr, target: &str, accept: &str) -> (u16, Value) {
    let answer = send(address, "GET", target, &[&format!("Accept: {accept}")]).await;
    let code = answer.code;
    let text = answer.text().await;
    (code, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

/// GET of plain JSON.
pub(super) async fn get(address: SocketAddr, target: &str) -> (u16, Value) {
    get_as(address, target, "application/json").await
}

impl Answer {
    /// The whole body.
    pub(super) async fn text(mut self) -> String {
        while self.read_some().await {}
        String::from_utf8(self.body).expect("UTF-8")
    }

    /// The next line of a watch; none at its clean end.
    pub(super) async fn line(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.body.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.body.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("a line of JSON"));
            }
            if !self.read_some().await {
                assert!(self.body.is_empty(), "half a line: {:?}", String::from_utf8_lossy(&self.body));
                return None;
            }
        }
    }

    /// The next event of a watch, short: type, name and version.
    pub(super) async fn event(&mut self) -> (String, String, u64) {
        let line = self.line().await.expect("an event");
        let metadata = &line["object"]["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let version = text(&metadata["resourceVersion"]).parse().unwrap_or_default();
        (text(&line["type"]), text(&metadata["name"]), version)
    }

    /// Reads one chunk, or what a body without chunks has. False at the end.
    async fn read_some(&mut self) -> bool {
        timeout(PATIENCE, async {
            if !self.headers.contains("transfer-encoding: chunked") {
                return self.stream.read_to_end(&mut self.body).await.expect("a body") > 0;
            }
            let mut size = String::new();
            self.stream.read_line(&mut size).await.expect("a chunk");
            let size = usize::from_str_radix(size.trim(), 16).expect("a chunk's size, or else the end was not clean");
            let mut chunk = vec![0; size + 2];
            self.stream.read_exact(&mut chunk).await.expect("a whole chunk");
            self.body.extend_from_slice(&chunk[..size]);
            size > 0
        })
        .await
        .expect("an answer in time")
    }
}
