//! Errors of a run, in one line.

/// A mistake of the user's, or a machine that cannot do what was requested.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

impl From<String> for Error {
    fn from(line: String) -> Self {
        Self(line)
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}
