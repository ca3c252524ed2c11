//! Sockets that poll the NIC instead of waiting for it.
