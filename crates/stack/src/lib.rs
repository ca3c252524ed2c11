//! Busy Poll Sockets in user space.
