//! A directory that network namespaces of this host have in common, in which their processes find each other. A process
//! has a socket there for requests ([`requests`](super::requests)), and for each address at which it accepts a symbolic
//! link that leads nowhere: its text says which process it is, and in which network namespace.
//!
//! Two containers may have the same address. So there are two places for each: with both in use no process has the address.

use super::{PATIENCE, requests::Process};
use crate::{sync::lock, unix};
use std::{
    fs::{self, File, Permissions},
    io,
    net::SocketAddr,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::{MetadataExt, PermissionsExt, symlink},
    },
    sync::{Arc, Mutex},
    thread::sleep,
    time::Duration,
};

/// The user that the kernel reports for one that this user namespace does not have, unless it was changed.
const OVERFLOW_USER: u32 = 65534;

/// How often a directory that another process changes is tried again, and how soon.
const LOCK_ATTEMPTS: u32 = 20;
const LOCK_INTERVAL: Duration = Duration::from_millis(1);

/// The directory, as one process uses it.
pub(super) struct Directory {
    path: String,
    own: Claim,
    overflow_user: u32,
    /// What this process has there.
    has: Mutex<Has>,
}

#[derive(Default)]
struct Has {
    socket: Option<Arc<OwnedFd>>,
    addresses: Vec<SocketAddr>,
}

/// What is written at an address: the process that accepts there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claim {
    process: Process,
    /// The number of its network namespace, which no other one of the host has while it exists.
    network: u32,
}

/// Whether a process may accept at this address, as far as a look into the directory says.
pub(super) fn is_claimed(directory: &str, address: SocketAddr) -> bool {
    places(directory, address).iter().any(|place| fs::read_link(place).is_ok())
}

fn places(directory: &str, address: SocketAddr) -> [String; 2] {
    let first = format!("{directory}/tcp-{address}");
    let second = format!("{first}+");
    [first, second]
}

fn claim(place: &str) -> Option<Claim> {
    let text = fs::read_link(place).ok()?;
    let mut words = text.to_str()?.split('-').map(|word| word.parse().ok());
    let mut next = || words.next().flatten();
    let (namespace, pid, network) = (next()?, next()?, next()?);
    Some(Claim { process: Process { namespace, pid }, network })
}

fn namespace(kind: &str) -> io::Result<u32> {
    let number = fs::metadata(format!("/proc/thread-self/ns/{kind}"))?.ino();
    u32::try_from(number).map_err(|_| io::ErrorKind::InvalidData.into())
}

impl Directory {
    /// # Errors
    /// There is none, or no /proc.
    pub(super) fn open(path: String) -> io::Result<Directory> {
        if !fs::metadata(&path)?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let process = Process { namespace: namespace("pid")?, pid: std::process::id() };
        let text = fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
        let overflow_user = text.trim().parse().unwrap_or(OVERFLOW_USER);
        let own = Claim { process, network: namespace("net")? };
        Ok(Directory { path, own, overflow_user, has: Mutex::default() })
    }

    /// This process.
    pub(super) fn own(&self) -> Process {
        self.own.process
    }

    /// Whether this process trusts `user`, as the kernel reports it in this user namespace.
    pub(super) fn trusts(&self, user: u32) -> bool {
        // Any user of another user namespace may be this one.
        user != self.overflow_user && unix::trusts(user)
    }

    /// Where a process has its socket.
    pub(super) fn socket_of(&self, process: Process) -> String {
        format!("{}/process-{:x}-{}", self.path, process.namespace, process.pid)
    }

    /// This process's socket, if it has published anything.
    pub(super) fn socket(&self) -> Option<Arc<OwnedFd>> {
        lock(&self.has).socket.clone()
    }

    /// The process of another network namespace that accepts at `address`; `None` also if two namespaces say so.
    pub(super) fn find(&self, address: SocketAddr) -> Option<Process> {
        let trusted = |place: &&String| {
            fs::symlink_metadata(place).is_ok_and(|found| self.trusts(found.uid()))
        };
        let places = places(&self.path, address);
        let [first, second] =
            [&places[0], &places[1]].map(|place| claim(place).filter(|_| trusted(&place)));
        let found = match (first, second) {
            (Some(one), Some(other)) if one != other => {
                match (self.is_gone(one.process), self.is_gone(other.process)) {
                    (true, false) => Some(other),
                    (false, true) => Some(one),
                    _ => None,
                }
            }
            (first, second) => first.or(second),
        };
        found.filter(|it| it.network != self.own.network).map(|it| it.process)
    }

    /// Other processes find this one at `address`. If its listener is at any address, the one of another process of this
    /// network namespace prevails. Returns whether they find it.
    pub(super) fn publish(&self, address: SocketAddr, is_any: bool) -> bool {
        let published = self.locked(|has| {
            self.listen(has)?;
            let places = places(&self.path, address);
            for place in &places {
                let gone = claim(place).filter(|old| self.is_gone(old.process));
                if let Some(old) = gone {
                    let _ = fs::remove_file(self.socket_of(old.process));
                    // What another user has left may have to stay.
                    let _ = fs::remove_file(place);
                }
            }
            for place in &places {
                match claim(place) {
                    Some(old) if old == self.own => return Ok(true),
                    // Another network namespace has this address, too.
                    Some(old) if old.network != self.own.network => continue,
                    Some(old) if self.is_gone(old.process) => continue,
                    Some(_) if is_any => return Ok(false),
                    Some(_) => fs::remove_file(place)?,
                    None => {}
                }
                let Claim { process: Process { namespace, pid }, network } = self.own;
                match symlink(format!("{namespace}-{pid}-{network}"), place) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    made => return made.map(|()| true),
                }
            }
            Ok(false)
        });
        let is_published = published.is_ok_and(|published| published);
        if is_published {
            lock(&self.has).addresses.push(address);
        }
        is_published
    }

    /// Other processes do not find this one at `address` any more.
    pub(super) fn withdraw(&self, address: SocketAddr) {
        let _ = self.locked(|has| {
            has.addresses.retain(|known| *known != address);
            self.remove(address);
            Ok(())
        });
    }

    /// This process ends.
    pub(super) fn leave(&self) {
        if lock(&self.has).socket.is_none() {
            return;
        }
        let _ = self.locked(|has| {
            std::mem::take(&mut has.addresses).into_iter().for_each(|address| self.remove(address));
            has.socket = None;
            fs::remove_file(self.socket_of(self.own.process))
        });
    }

    fn remove(&self, address: SocketAddr) {
        for place in places(&self.path, address) {
            if claim(&place) == Some(self.own) {
                let _ = fs::remove_file(place);
            }
        }
    }

    /// Makes this process's socket.
    fn listen(&self, has: &mut Has) -> io::Result<()> {
        if has.socket.is_some() {
            return Ok(());
        }
        let path = self.socket_of(self.own.process);
        // Of a process that had its number, or of the program that this process was.
        if self.is_gone(self.own.process) {
            let _ = fs::remove_file(&path);
        }
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK;
        let socket = unix::listen(&path, kind)?;
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        has.socket = Some(Arc::new(socket));
        Ok(())
    }

    /// Whether no process has this socket. An error of another kind says nothing of it.
    fn is_gone(&self, process: Process) -> bool {
        let dialled = unix::connect(&self.socket_of(process), libc::SOCK_SEQPACKET, PATIENCE);
        dialled.is_err_and(|error| {
            matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
        })
    }

    /// Does this while no other process changes the directory.
    ///
    /// # Errors
    /// `WouldBlock`: one does so, and is stopped perhaps; those of `then`.
    fn locked<T>(&self, then: impl FnOnce(&mut Has) -> io::Result<T>) -> io::Result<T> {
        let mut has = lock(&self.has);
        let directory = File::open(&self.path)?;
        for _ in 0..LOCK_ATTEMPTS {
            // SAFETY: a plain system call.
            if unsafe { libc::flock(directory.as_fd().as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }
                == 0
            {
                return then(&mut has);
            }
            sleep(LOCK_INTERVAL);
        }
        Err(io::ErrorKind::WouldBlock.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Place {
            let path = std::env::temp_dir().join(format!("busypoll-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Place(path)
        }

        /// As a process of another namespace, with this number, has it.
        fn directory(&self, number: u32) -> Directory {
            let mut directory = Directory::open(self.0.to_str().unwrap().to_owned()).unwrap();
            directory.own.process.namespace += number;
            directory.own.network += number;
            directory
        }

        fn files(&self) -> usize {
            fs::read_dir(&self.0).unwrap().count()
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn an_address_is_found_until_two_namespaces_have_it() {
        let place = Place::new("found");
        let [client, one, other, third] = [0, 1, 2, 3].map(|number| place.directory(number));
        for address in ["10.0.0.2:7", "[fd00::2]:7"].map(|text| text.parse().unwrap()) {
            assert_eq!(client.find(address), None);
            assert!(one.publish(address, true) && one.publish(address, true));
            assert_eq!(client.find(address), Some(one.own()));
            assert_eq!(one.find(address), None, "it is its own");
            assert!(other.publish(address, false));
            assert_eq!(client.find(address), None);
            assert!(!third.publish(address, false));
            one.withdraw(address);
            assert_eq!(client.find(address), Some(other.own()));
            // It takes the place that is free.
            assert!(third.publish(address, false));
            assert_eq!(client.find(address), None);
            third.withdraw(address);
            other.withdraw(address);
            assert_eq!(client.find(address), None);
        }
        [one, other, third].iter().for_each(Directory::leave);
        assert_eq!(place.files(), 0);
    }

    #[test]
    fn what_a_process_has_left_is_replaced() {
        let place = Place::new("left");
        let [client, killed, next] = [0, 1, 2].map(|number| place.directory(number));
        let address = "10.0.0.2:7".parse().unwrap();
        assert!(killed.publish(address, false));
        // Its descriptors are closed, and its files remain.
        lock(&killed.has).socket = None;
        assert_eq!(client.find(address), Some(killed.own()));
        assert!(next.publish(address, true));
        assert_eq!(client.find(address), Some(next.own()));
        next.leave();
        assert_eq!(place.files(), 0);
        // The same process number again.
        assert!(killed.publish(address, false));
        lock(&killed.has).socket = None;
        assert!(killed.publish(address, false) && killed.socket().is_some());
    }

    #[test]
    fn a_listener_at_one_address_prevails_over_one_at_any() {
        let place = Place::new("any");
        let (client, one) = (place.directory(0), place.directory(1));
        let mut other = place.directory(1);
        other.own.process.pid += 1;
        let address = "10.0.0.2:7".parse().unwrap();
        assert!(one.publish(address, true) && other.publish(address, false));
        assert_eq!(client.find(address), Some(other.own()));
        assert!(!one.publish(address, true));
        // What it had there is not its own any more.
        one.withdraw(address);
        assert_eq!(client.find(address), Some(other.own()));
    }

    #[test]
    fn other_texts_and_files_are_no_claims() {
        let place = Place::new("texts");
        let (client, one) = (place.directory(0), place.directory(1));
        let address: SocketAddr = "10.0.0.2:7".parse().unwrap();
        let [first, _] = places(&client.path, address);
        for text in ["", "x", "1-2", "1-2-x", "1-2-99999999999", "/etc/passwd"] {
            if text.is_empty() {
                fs::write(&first, "1-2-3").unwrap();
            } else {
                symlink(text, &first).unwrap();
            }
            assert_eq!(client.find(address), None, "{text}");
            // The other place is free.
            assert!(one.publish(address, false), "{text}");
            assert_eq!(client.find(address), Some(one.own()), "{text}");
            one.withdraw(address);
            fs::remove_file(&first).unwrap();
        }
    }
}
