//! What was built: the version and the commit, in the command and in the library it starts programs with.

/// The commit of a release build; `development` of any other; what `BUSYPOLL_BUILD` said where it was set.
pub const BUILD: &str = env!("BUSYPOLL_BUILD");

/// What `--version` says.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUSYPOLL_BUILD"), ")");

/// The owner of the ELF note in which the library carries [`BUILD`].
pub const NOTE_OWNER: &str = "busypoll";
