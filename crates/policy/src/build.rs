//! The version and the commit of the build, in the command and in the library it preloads.

/// The commit of a release build; `development` for any other; `BUSYPOLL_BUILD` of the environment if it was set.
pub const BUILD: &str = env!("BUSYPOLL_BUILD");

/// The output of `--version`.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUSYPOLL_BUILD"), ")");

/// The owner of the ELF note in which the library carries [`BUILD`].
pub const NOTE_OWNER: &str = "busypoll";
