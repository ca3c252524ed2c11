//! Other tools' round trips: what netperf and sockperf print, so that earlier runs stand beside ours.

mod netperf;
mod sockperf;

use crate::arm::Protocol;

/// A test of another tool.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Test {
    /// `netperf TCP_RR`, `sockperf UDP`.
    pub name: String,
    /// The transport, if the output names it.
    pub protocol: Option<Protocol>,
    /// Bytes of request and response, if it names them.
    pub sizes: Option<(usize, usize)>,
    /// Transactions a second.
    pub per_second: Option<f64>,
    /// Round trips in microseconds. Of a tool that reports half of one, twice that.
    pub rtt_us: Latency,
    /// Microseconds of CPU for each transaction, of the client's machine and the server's: each is the whole machine's, so
    /// on one machine they are the same time twice.
    pub demand_us: [Option<f64>; 2],
    /// What a reader has to know.
    pub note: Option<&'static str>,
}

/// What a tool says of latency.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[allow(missing_docs)]
pub struct Latency {
    pub min: Option<f64>,
    pub mean: Option<f64>,
    pub p50: Option<f64>,
    pub p99: Option<f64>,
    pub max: Option<f64>,
}

/// Whether a text looks like another tool's output, so that mistakes in it are reported as such.
pub fn is_foreign(text: &str) -> bool {
    !text.trim_start().starts_with(['{', '[']) && (sockperf::is_it(text) || netperf::is_it(text))
}

/// Reads the tests of a file, which may hold the output of several.
///
/// # Errors
/// A message of one line, if there is no round trip in it.
pub fn parse(text: &str) -> Result<Vec<Test>, String> {
    let tests = if sockperf::is_it(text) { sockperf::tests(text) } else { netperf::tests(text) };
    match tests.is_empty() {
        true => Err("no round trips in it: netperf's TCP_RR and UDP_RR and its omni tests with `-d rr` (as text, with -o \
             or -k), and sockperf's ping-pong and under-load are read"
            .to_owned()),
        false => Ok(tests),
    }
}

/// A figure, if it is one: netperf prints -1 for what it does not know.
fn figure(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|x: &f64| x.is_finite() && *x >= 0.0)
}

fn protocol(text: &str) -> Option<Protocol> {
    match text.trim() {
        word if word.eq_ignore_ascii_case("tcp") => Some(Protocol::Tcp),
        word if word.eq_ignore_ascii_case("udp") => Some(Protocol::Udp),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn sample(name: &str) -> String {
        let file = format!("{}/src/foreign/samples/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(file).expect("a sample")
    }

    /// The only test of a sample.
    pub(super) fn only(name: &str) -> Test {
        let mut tests = parse(&sample(name)).expect("a test");
        assert_eq!(tests.len(), 1, "{tests:?}");
        tests.remove(0)
    }

    const ALL: [&str; 13] = [
        "netperf-tcp-cpu.txt",
        "netperf-udp.txt",
        "netperf-no-banner.txt",
        "netperf-omni-k.txt",
        "netperf-omni.csv",
        "netperf-omni-all.csv",
        "netperf-omni-columns.txt",
        "netperf-stream.txt",
        "sockperf-pp.txt",
        "sockperf-pp-tcp.txt",
        "sockperf-ul.txt",
        "sockperf-tp.txt",
        "sockperf-full-log.csv",
    ];

    #[test]
    fn each_sample_is_known_and_any_part_or_change_of_it_is_read_or_refused_in_one_line() {
        for name in ALL {
            let text = sample(name);
            assert!(is_foreign(&text), "{name}");
            let read = |text: &str| {
                if let Err(why) = parse(text) {
                    assert_eq!(why.lines().count(), 1, "{name}: {why}");
                }
            };
            for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
                read(&text[..end]);
                read(&text[end..]);
            }
            for (was, is) in
                [(".", "e999"), ("1", "-1"), (",", ",,"), ("=", "=="), ("\n", " "), ("0", "\u{0}")]
            {
                read(&text.replace(was, is));
            }
        }
        assert!(
            !is_foreign("") && !is_foreign("{\"schema\": \"bench-rr\"}") && !is_foreign("[1, 2]")
        );
    }

    #[test]
    fn what_holds_no_round_trips_says_so() {
        for name in ["netperf-stream.txt", "netperf-omni-columns.txt", "sockperf-tp.txt"] {
            assert!(parse(&sample(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn several_tests_in_one_file_are_all_read() {
        let text = sample("netperf-tcp-cpu.txt")
            + &sample("netperf-udp.txt")
            + &sample("netperf-omni.csv");
        let tests = parse(&text).expect("three");
        assert_eq!(tests.len(), 3, "{tests:?}");
        let sizes: Vec<_> = tests.iter().filter_map(|test| test.sizes).collect();
        assert_eq!(sizes, [(1, 1), (64, 64), (16, 16)]);
        let text = sample("sockperf-pp.txt") + &sample("sockperf-pp-tcp.txt");
        assert_eq!(parse(&text).expect("two").len(), 2);
    }
}
