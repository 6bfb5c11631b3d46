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

/// The same on one line, for logs and health: without the excerpts, which are indented.
pub(super) fn one_line(error: &dyn Error) -> String {
    let mut line = String::new();
    for part in chain(error).lines() {
        match part.strip_prefix("  because: ") {
            Some(cause) => line.extend([": ", cause]),
            None if part.starts_with("  ") => {}
            None => line.extend([if line.is_empty() { "" } else { "; " }, part]),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Problem(&'static str, #[source] Option<Box<Problem>>);

    #[test]
    fn one_line_has_the_causes_and_all_paragraphs_but_no_excerpt() {
        let cause = Problem("t.toml:1:2: wrong; mend it\n  1 | [a]\n    |  ^\nt.toml:9:1: wrong, too", None);
        let error = Problem("it cannot be used", Some(Box::new(cause)));
        let line = "it cannot be used: t.toml:1:2: wrong; mend it; t.toml:9:1: wrong, too";
        assert_eq!(one_line(&error), line);
    }
}
