//! The `busypoll` command.
fn main() {}
