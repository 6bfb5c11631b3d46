//! The only home of the terminal: lines to stdout and stderr, and an error with its causes.

use std::error::Error;
use std::io::Write;

/// Writes to stdout; a reader that went away is no error.
pub(super) fn out(text: &str) {
    let mut stdout = std::io::stdout().lock();
    drop(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()));
}

/// Writes a line to stderr.
pub(super) fn err(line: &str) {
    drop(writeln!(std::io::stderr().lock(), "{line}"));
}

/// An error with its causes, one a line: printed once, here at the edge.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str("\n  because: ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
