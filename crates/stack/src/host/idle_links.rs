//! Links to processes of this machine that no connection uses are closed after a while, which gives their memory back.

use crate::inet::Inet;

/// What was seen of a link at the last look: its number, how many packets it had carried, and whether no connection may
/// begin on it.
struct Seen {
    link: u32,
    packets: u64,
    is_closing: bool,
}

/// The links of one host, as they were at the last look.
#[derive(Default)]
pub(super) struct IdleLinks(Vec<Seen>);

impl IdleLinks {
    /// Returns those of `links` that are to be closed. A link that has been idle since the last look is first closed to
    /// new connections. At the next look there is no segment left that could begin one.
    pub(super) fn look(&mut self, inet: &Inet, links: &[u32]) -> Vec<u32> {
        let mut idle = Vec::new();
        let mut seen = Vec::with_capacity(links.len());
        for link in links.iter().copied() {
            let Some(packets) = inet.packets_over(link) else { continue };
            let last = self.0.iter().find(|last| last.link == link);
            let is_idle =
                last.is_some_and(|last| last.packets == packets) && !inet.tcp_uses_link(link);
            if is_idle && last.is_some_and(|last| last.is_closing) {
                idle.push(link);
            } else {
                inet.set_link_closing(link, is_idle);
            }
            seen.push(Seen { link, packets, is_closing: is_idle });
        }
        self.0 = seen;
        idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Host, Link, TcpListener, TcpStream, nic::cable};
    use std::{io::ErrorKind, thread};

    /// Two hosts with a link, whose numbers they have.
    fn linked() -> [(Host, Link); 2] {
        let name = format!("idle-links-{}-{:?}", std::process::id(), thread::current().id());
        let rendezvous = cable::listen(&name).unwrap();
        let other = thread::spawn(move || cable::connect(&name).unwrap());
        let cables = [rendezvous.accept(cable::Config::default()).unwrap(), other.join().unwrap()];
        cables.map(|cable| {
            let host = Host::builder().build().unwrap();
            let link = host.add_link(cable).unwrap();
            (host, link)
        })
    }

    fn connect((host, link): &(Host, Link)) -> std::io::Result<TcpStream> {
        let stream = TcpStream::new(host);
        stream.set_link(*link);
        stream.connect_to("127.0.0.1:7".parse().unwrap()).map(|()| stream)
    }

    #[test]
    fn a_link_is_closed_at_the_second_look_after_its_last_connection() {
        let [server, client] = linked();
        let listener = TcpListener::bind(&server.0, "127.0.0.1:7").unwrap();
        let mut idle = IdleLinks::default();
        let mut look = || idle.look(server.0.inet(), &[server.1.0]);
        let stream = connect(&client).unwrap();
        let accepted = listener.accept().unwrap();
        for _ in 0..3 {
            assert!(look().is_empty(), "it has a connection");
        }
        stream.set_linger(Some(std::time::Duration::ZERO)).unwrap();
        drop(stream);
        while server.0.inet().tcp_uses_link(server.1.0) {
            thread::yield_now();
        }
        drop(accepted);
        // The reset is a packet since the last look.
        assert!(look().is_empty());
        assert!(look().is_empty());
        let refused = connect(&client).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "it is closed to new connections");
        // They were packets, so it is open again.
        assert!(look().is_empty());
        let stream = connect(&client).unwrap();
        drop((stream, listener.accept().unwrap()));
        while server.0.inet().tcp_uses_link(server.1.0) {
            thread::yield_now();
        }
        let mut looks = 0;
        while look().is_empty() {
            looks += 1;
            assert!(looks < 5);
        }
        server.0.close_link(server.1);
        while [&server, &client].iter().any(|(host, link)| host.inet().has_link(link.0)) {
            thread::yield_now();
        }
    }
}
