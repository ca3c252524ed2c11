//! All sources together: one page for a scrape.

use std::fmt::Display;
use std::time::Instant;

use busypoll_observe::findings::Findings;
use busypoll_observe::passes::PassCount;
use busypoll_observe::runs::Guards;
use busypoll_policy::{BUILD, say};

use crate::metrics::{BUILD_INFO, LEFT_OUT, SOURCE_SECONDS, SOURCE_UP, UNSEEN};
use crate::page::Page;
use crate::sources::{findings, kernel, napi, passes, runs, spinners};

/// The sources, and how many samples there may be.
pub(crate) struct Collector {
    pub(crate) passes: PassCount,
    pub(crate) findings: Findings,
    pub(crate) guards: Guards,
    pub(crate) max_series: usize,
    pub(crate) left_out: u64,
    /// Sources whose first failure was reported.
    pub(crate) reported: Vec<&'static str>,
}

impl Collector {
    /// A page of the present figures.
    pub(crate) fn page(&mut self) -> Vec<u8> {
        let mut page = Page::new(self.max_series);
        // What other users can make many of comes last: it must not crowd out the rest.
        let sources = [
            read("kernel", || kernel::collect(&mut page)),
            read("netlink", || napi::collect(&mut page)),
            read("doctor", || findings::collect(&self.findings, &mut page)),
            read("bpf", || passes::collect(&mut self.passes, &mut page)),
            read("spinners", || spinners::collect(&mut page)),
            read("guards", || Ok::<_, String>(runs::collect(&mut self.guards, &mut page))),
        ];
        self.left_out += page.left_out();
        page.reserve(2 + 3 * sources.len());
        page.count(&BUILD_INFO, &[env!("CARGO_PKG_VERSION"), BUILD], 1);
        page.count(&LEFT_OUT, &[], self.left_out);
        for source in sources {
            page.count(&SOURCE_UP, &[source.name], u64::from(source.unseen.is_ok()));
            page.add(&SOURCE_SECONDS, &[source.name], source.seconds);
            match source.unseen {
                Ok(unseen) => page.count(&UNSEEN, &[source.name], unseen),
                Err(why) if !self.reported.contains(&source.name) => {
                    self.reported.push(source.name);
                    say(format_args!("no metrics from {}: {why}", source.name));
                }
                Err(_) => {}
            }
        }
        page.text()
    }
}

struct Source {
    name: &'static str,
    /// How much of it was not seen; why nothing was.
    unseen: Result<u64, String>,
    seconds: f64,
}

fn read<E: Display>(name: &'static str, collect: impl FnOnce() -> Result<u64, E>) -> Source {
    let begun = Instant::now();
    let unseen = collect().map_err(|error| error.to_string());
    Source { name, unseen, seconds: begun.elapsed().as_secs_f64() }
}
