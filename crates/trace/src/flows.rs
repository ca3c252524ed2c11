//! Packets summed up by socket or connection, and by direction.

use std::collections::HashMap;

use busypoll_bench::data::{FoundCounts, TraceFlow, TraceStage};
use busypoll_linux::bpf::trace::Ends;
use hdrhistogram::Histogram;

/// More flows than this are summed up as one, but connections of an address first.
pub const MOST: usize = 64;

/// More TCP connections of a local address, as a server has them, are one row.
const CONNECTIONS: usize = 8;

/// A time longer than this counts as this, in ns.
const LONGEST: u64 = 60_000_000_000;

/// Which plane carried a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plane {
    /// Linux's own.
    Kernel,
    /// The stack of the preload library.
    Stack,
}

impl Plane {
    fn name(self) -> &'static str {
        match self {
            Plane::Kernel => "kernel",
            Plane::Stack => "stack",
        }
    }
}

/// What tells flows apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Its plane.
    pub plane: Plane,
    /// Its addresses.
    pub ends: Ends,
}

/// The flows of one direction.
pub struct Flows {
    names: &'static [&'static str],
    flows: HashMap<Key, Flow>,
    others: Option<(Plane, Flow)>,
}

#[derive(Clone)]
struct Flow {
    program: String,
    pid: u32,
    found: Option<FoundCounts>,
    stages: Vec<Times>,
    total: Times,
}

#[derive(Clone)]
struct Times {
    histogram: Histogram<u64>,
    sum: u64,
}

impl Flows {
    /// None yet; these are the names of their stages.
    pub fn new(names: &'static [&'static str]) -> Self {
        Flows { names, flows: HashMap::new(), others: None }
    }

    /// Adds a packet with these stages, in ns. `found` counts how it was found, if it was received.
    pub fn add(
        &mut self,
        key: Key,
        (pid, program): (u32, &str),
        stages: &[u64],
        found: Option<fn(&mut FoundCounts) -> &mut u64>,
    ) {
        let new = || Flow {
            program: program.to_owned(),
            pid,
            found: found.map(|_| FoundCounts::default()),
            stages: self.names.iter().map(|_| Times::new()).collect(),
            total: Times::new(),
        };
        let of_address = key.of_address();
        let flow = if self.flows.len() < MOST || self.flows.contains_key(&key) {
            self.flows.entry(key).or_insert_with(new)
        } else if key.ends.tcp
            && (self.flows.len() < 2 * MOST || self.flows.contains_key(&of_address))
        {
            self.flows.entry(of_address).or_insert_with(new)
        } else {
            &mut self.others.get_or_insert_with(|| (key.plane, new())).1
        };
        flow.belongs_to(pid, program);
        for (times, ns) in flow.stages.iter_mut().zip(stages) {
            times.add(*ns);
        }
        flow.total.add(stages.iter().sum());
        if let (Some(counts), Some(way)) = (&mut flow.found, found) {
            *way(counts) += 1;
        }
    }

    /// For reports: the busiest first, and last what was summed up.
    pub fn report(&self) -> Vec<TraceFlow> {
        let mut of_address: HashMap<Key, usize> = HashMap::new();
        for key in self.flows.keys().filter(|key| key.ends.tcp) {
            // The row of an address stands for many.
            let more = if key.ends.peer.is_none() { CONNECTIONS } else { 1 };
            *of_address.entry(key.of_address()).or_default() += more;
        }
        let mut rows: HashMap<Key, Flow> = HashMap::new();
        for (key, flow) in &self.flows {
            let connections = of_address.get(&key.of_address());
            let many = key.ends.tcp && connections.is_some_and(|many| *many > CONNECTIONS);
            let key = if many { key.of_address() } else { *key };
            rows.entry(key).and_modify(|row| row.add(flow)).or_insert_with(|| flow.clone());
        }
        let each = rows.iter().map(|(key, flow)| {
            let protocol = if key.ends.tcp { "tcp" } else { "udp" };
            let local = key.ends.local.to_string();
            let peer = key.ends.peer.map(|peer| peer.to_string());
            flow.report(self.names, [key.plane.name(), protocol], local, peer)
        });
        let mut all: Vec<TraceFlow> = each.collect();
        all.sort_by(|a, b| b.packets.cmp(&a.packets).then_with(|| a.local.cmp(&b.local)));
        let others = self.others.as_ref();
        all.extend(others.map(|(plane, flow)| {
            flow.report(self.names, [plane.name(), "all"], "others".to_owned(), None)
        }));
        all
    }
}

impl Key {
    /// The key of all connections of its address.
    fn of_address(&self) -> Key {
        Key { ends: Ends { peer: None, ..self.ends }, ..*self }
    }
}

impl Flow {
    /// Several processes may have a socket.
    fn belongs_to(&mut self, pid: u32, program: &str) {
        if self.pid != pid {
            self.pid = 0;
        }
        if self.program.is_empty() {
            self.program = program.to_owned();
        }
    }

    /// Adds the packets of another flow.
    fn add(&mut self, other: &Flow) {
        self.belongs_to(other.pid, &other.program);
        for (times, more) in self.stages.iter_mut().zip(&other.stages) {
            times.add_all(more);
        }
        self.total.add_all(&other.total);
        if let (Some(counts), Some(more)) = (&mut self.found, other.found) {
            counts.own_polls += more.own_polls;
            counts.other_polls += more.other_polls;
            counts.softirq += more.softirq;
            counts.napi_threads += more.napi_threads;
            counts.woken += more.woken;
            counts.direct += more.direct;
        }
    }

    fn report(
        &self,
        names: &[&str],
        [plane, protocol]: [&str; 2],
        local: String,
        peer: Option<String>,
    ) -> TraceFlow {
        TraceFlow {
            plane: plane.to_owned(),
            protocol: protocol.to_owned(),
            local,
            peer,
            program: self.program.clone(),
            pid: self.pid,
            packets: self.total.histogram.len(),
            found: self.found,
            stages_us: names
                .iter()
                .zip(&self.stages)
                .map(|(name, times)| times.report(name))
                .collect(),
            total_us: self.total.report("total"),
        }
    }
}

impl Times {
    fn new() -> Self {
        // The bounds are constants within what the crate accepts; the fallback only widens them.
        let histogram = Histogram::new_with_bounds(1, LONGEST, 2)
            .unwrap_or_else(|_| Histogram::new(2).unwrap_or_else(|_| unreachable!("2 is valid")));
        Times { histogram, sum: 0 }
    }

    fn add(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
        self.sum = self.sum.saturating_add(ns);
    }

    fn add_all(&mut self, other: &Times) {
        // It cannot fail: both have the same bounds.
        let _ = self.histogram.add(&other.histogram);
        self.sum = self.sum.saturating_add(other.sum);
    }

    fn report(&self, name: &str) -> TraceStage {
        let packets = self.histogram.len();
        let us = |ns: u64| ns as f64 / 1e3;
        let at = |quantile| us(self.histogram.value_at_quantile(quantile));
        let mut histogram: Vec<(f64, u64)> = Vec::new();
        for value in self.histogram.iter_recorded() {
            let end = us(value.value_iterated_to().max(1)).log2().floor().exp2() * 2.0;
            match histogram.last_mut() {
                Some((last, count)) if *last == end => *count += value.count_at_value(),
                _ => histogram.push((end, value.count_at_value())),
            }
        }
        TraceStage {
            stage: name.to_owned(),
            mean: if packets == 0 { 0.0 } else { us(self.sum) / packets as f64 },
            p50: at(0.5),
            p99: (packets >= 100).then(|| at(0.99)),
            p99_9: (packets >= 1000).then(|| at(0.999)),
            max: us(self.histogram.max()),
            histogram,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(port: u16) -> Key {
        let local = ([10, 0, 0, 1], port).into();
        Key { plane: Plane::Kernel, ends: Ends { tcp: false, local, peer: None } }
    }

    #[test]
    fn means_of_stages_add_up_and_percentiles_need_packets() {
        let mut flows = Flows::new(&["one", "two"]);
        for n in 0..150u64 {
            flows.add(key(1), (7, "program"), &[n * 1000, 500], Some(|found| &mut found.softirq));
        }
        flows.add(key(2), (7, "program"), &[1, 2], Some(|found| &mut found.own_polls));
        let report = flows.report();
        let flow = &report[0];
        assert_eq!((flow.packets, flow.pid, flow.found.map(|f| f.softirq)), (150, 7, Some(150)));
        let means: f64 = flow.stages_us.iter().map(|stage| stage.mean).sum();
        assert!((means - flow.total_us.mean).abs() < 1e-6, "{means}");
        assert!((flow.stages_us[0].p50 - 74.5).abs() < 1.5, "{:?}", flow.stages_us[0]);
        assert!(flow.stages_us[0].p99.is_some() && flow.stages_us[0].p99_9.is_none());
        let counted: u64 = flow.stages_us[0].histogram.iter().map(|(_, n)| n).sum();
        assert_eq!(counted, 150);
        assert!(flow.stages_us[1].histogram == [(1.0, 150)], "{:?}", flow.stages_us[1].histogram);
        assert_eq!((report[1].packets, report[1].total_us.p99), (1, None));
    }

    #[test]
    fn many_connections_of_an_address_are_one_row() {
        let ends = |port: u16, peer: u16| Ends {
            tcp: true,
            local: ([10, 0, 0, 1], port).into(),
            peer: Some(([10, 0, 0, 2], peer).into()),
        };
        let mut flows = Flows::new(&["one"]);
        let mut add = |ends| {
            let key = Key { plane: Plane::Kernel, ends };
            flows.add(key, (7, "program"), &[5], Some(|found| &mut found.softirq));
        };
        // More than there is room for, twice.
        for peer in 0..200 {
            add(ends(80, peer));
            add(ends(443, peer));
        }
        for peer in 0..CONNECTIONS as u16 {
            add(ends(22, peer));
        }
        let report = flows.report();
        let row = |local: &str| {
            let rows = report.iter().filter(|row| row.local == local);
            rows.map(|row| (row.peer.is_some(), row.packets, row.pid)).collect::<Vec<_>>()
        };
        assert_eq!(row("10.0.0.1:80"), [(false, 200, 7)]);
        assert_eq!(row("10.0.0.1:443"), [(false, 200, 7)]);
        assert_eq!(row("10.0.0.1:22"), [(false, CONNECTIONS as u64, 7)]);
        assert_eq!(report[0].found.map(|found| found.softirq), Some(200));
        assert!((report[0].total_us.mean - 0.005).abs() < 1e-9, "{:?}", report[0].total_us);
        let mut flows = Flows::new(&["one"]);
        for peer in 0..CONNECTIONS as u16 {
            let key = Key { plane: Plane::Kernel, ends: ends(22, peer) };
            flows.add(key, (7, "program"), &[5], None);
        }
        assert_eq!(flows.report().len(), CONNECTIONS);
    }

    #[test]
    fn flows_without_end_are_summed_up_and_processes_that_share_one_have_no_number() {
        let mut flows = Flows::new(&["one"]);
        for port in 0..200 {
            flows.add(key(port), (7, "program"), &[5], None);
        }
        flows.add(key(0), (8, "program"), &[5], None);
        let report = flows.report();
        assert_eq!(report.len(), MOST + 1);
        assert_eq!((report[0].packets, report[0].pid), (2, 0));
        let others = report.last().expect("others");
        assert_eq!((others.local.as_str(), others.packets), ("others", 200 - MOST as u64));
        assert!(others.found.is_none());
    }
}
