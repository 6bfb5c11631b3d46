//! A small HTTP/1.1 client of the tests' own: a request, its answer, and bodies that never end.

use std::io::{self, BufRead, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// An answer whose body has an end.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Status code.
    pub(crate) status: u16,
    /// Body.
    pub(crate) body: String,
}

/// GET of `path`, read to its end.
pub(crate) fn get(address: SocketAddr, path: &str) -> io::Result<Answer> {
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let (status, mut body) = open(stream, address, path)?;
    let mut text = String::new();
    body.read_to_string(&mut text)?;
    Ok(Answer { status, body: text })
}

/// GET of `path` on a connection; the body is read as it comes.
pub(crate) fn open(mut stream: TcpStream, address: SocketAddr, path: &str) -> io::Result<(u16, Body)> {
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: application/json\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut reader = BufReader::new(stream);
    let first = line(&mut reader)?;
    let status = first.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(|| odd("no status line"))?;
    let mut frame = Frame::ToTheEnd;
    loop {
        let header = line(&mut reader)?.to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(length) = header.strip_prefix("content-length:") {
            frame = Frame::Length(length.trim().parse().map_err(|_| odd("odd content-length"))?);
        } else if header.starts_with("transfer-encoding:") && header.ends_with("chunked") {
            frame = Frame::Chunk(0);
        }
    }
    Ok((status, Body { reader, frame }))
}

/// The body of an answer.
pub(crate) struct Body {
    reader: BufReader<TcpStream>,
    frame: Frame,
}

enum Frame {
    ToTheEnd,
    /// So many bytes are left.
    Length(u64),
    /// So many bytes are left of this chunk.
    Chunk(u64),
    Over,
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Frame::Chunk(0) = self.frame {
            let size = line(&mut self.reader)?;
            let size = u64::from_str_radix(size.trim(), 16).map_err(|_| odd("odd chunk size"))?;
            self.frame = if size == 0 { Frame::Over } else { Frame::Chunk(size) };
        }
        let (Frame::Length(left) | Frame::Chunk(left)) = &mut self.frame else {
            return if matches!(self.frame, Frame::Over) { Ok(0) } else { self.reader.read(buffer) };
        };
        let room = usize::try_from(*left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.reader.read(&mut buffer[..room])?;
        if read == 0 && room > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        *left -= read as u64;
        if matches!(self.frame, Frame::Chunk(0)) {
            line(&mut self.reader)?;
        }
        Ok(read)
    }
}

/// A line without its end.
fn line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut text = String::new();
    if reader.read_line(&mut text)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    text.truncate(text.trim_end().len());
    Ok(text)
}

fn odd(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
