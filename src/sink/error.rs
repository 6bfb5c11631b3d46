//! What a sink may fail with, sorted by what the pump does about it.

use std::error::Error;
use std::fmt;
use std::time::Duration;

/// What lies beneath a [`SinkError`]: the client's own error.
pub type Cause = Box<dyn Error + Send + Sync>;

/// Why an upstream did not take what it was given. The variant decides what happens next; no variant loses a record
/// but [`SinkError::Rejected`], and that only record by record.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// The upstream does not answer, or not in time. Tried again with back-off.
    #[error("no answer from the upstream while {doing}")]
    Unreachable {
        /// What was being done.
        doing: String,
        /// The client's error.
        #[source]
        source: Cause,
    },
    /// The upstream knows this gateway and refuses it. Tried again with a long back-off.
    #[error("the upstream refused while {doing}; {mend}")]
    Denied {
        /// What was being done.
        doing: String,
        /// What a user can do about it.
        mend: String,
        /// The client's error.
        #[source]
        source: Cause,
    },
    /// Something is missing or wrong on either side, such as an unknown topic. Tried again with back-off.
    #[error("{what}; {mend}")]
    Misconfigured {
        /// What is wrong, with names.
        what: String,
        /// What a user can do about it.
        mend: String,
        /// The client's error.
        #[source]
        source: Cause,
    },
    /// The upstream answered that a record is at fault; which of its batch is known only when it was alone.
    #[error("the upstream rejected a record while {doing}")]
    Rejected {
        /// What was being done.
        doing: String,
        /// The client's error.
        #[source]
        source: Cause,
    },
}

impl SinkError {
    /// The variant as a word, for logs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "unreachable",
            Self::Denied { .. } => "denied",
            Self::Misconfigured { .. } => "misconfigured",
            Self::Rejected { .. } => "rejected",
        }
    }

    /// No answer within a bound of our own.
    pub fn no_answer(doing: impl Into<String>, within: Duration) -> Self {
        Self::Unreachable { doing: doing.into(), source: Box::new(NoAnswer { within }) }
    }
}

/// An error with its causes on one line; for the edge where the chain is printed.
pub(super) struct Chain<'a>(pub(super) &'a dyn Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

#[derive(Debug, thiserror::Error)]
#[error("nothing came within {within:?}")]
struct NoAnswer {
    within: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_names_each_cause_once() {
        let error = SinkError::no_answer("sending records", Duration::from_secs(30));
        let line = "no answer from the upstream while sending records: nothing came within 30s";
        assert_eq!(Chain(&error).to_string(), line);
        assert_eq!(error.kind(), "unreachable");
    }
}
