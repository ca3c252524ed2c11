//! One scrape: the samples that the sources add, as many as are allowed, and their text.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use prometheus::{CounterVec, Encoder, GaugeVec, Opts, Registry, TextEncoder};

use crate::metrics::{Kind, Metric};

/// Prometheus's text format.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The longest value of a label, in characters. The kernel's names are shorter.
const LABEL: usize = 64;

/// The samples of one scrape.
pub(crate) struct Page {
    registry: Registry,
    families: HashMap<&'static str, Family>,
    room: usize,
    left_out: u64,
}

enum Family {
    Counter(CounterVec),
    Gauge(GaugeVec),
}

impl Page {
    /// An empty page for at most `room` samples.
    pub(crate) fn new(room: usize) -> Self {
        Page { registry: Registry::new(), families: HashMap::new(), room, left_out: 0 }
    }

    /// Adds a sample; a counter that has one with these labels grows by it.
    pub(crate) fn add(&mut self, metric: &'static Metric, labels: &[&str], value: f64) {
        let Some(room) = self.room.checked_sub(1) else {
            self.left_out += 1;
            return;
        };
        self.room = room;
        let labels: Vec<&str> = labels.iter().map(|label| shortened(label)).collect();
        match self.family(metric) {
            Some(Family::Counter(family)) => {
                if let Ok(counter) = family.get_metric_with_label_values(&labels) {
                    counter.inc_by(value.max(0.0));
                }
            }
            Some(Family::Gauge(family)) => {
                if let Ok(gauge) = family.get_metric_with_label_values(&labels) {
                    gauge.set(value);
                }
            }
            None => self.left_out += 1,
        }
    }

    /// Adds a count.
    pub(crate) fn count(&mut self, metric: &'static Metric, labels: &[&str], count: u64) {
        self.add(metric, labels, count as f64);
    }

    /// How many samples had no room.
    pub(crate) fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Makes room for samples about the page itself.
    pub(crate) fn reserve(&mut self, samples: usize) {
        self.room += samples;
    }

    /// The page in Prometheus's text format.
    pub(crate) fn text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        // Writing into memory does not fail.
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut text);
        text
    }

    /// `None` only if the table of metrics is wrong, which its test excludes.
    fn family(&mut self, metric: &'static Metric) -> Option<&Family> {
        match self.families.entry(metric.name) {
            Entry::Occupied(family) => Some(family.into_mut()),
            Entry::Vacant(place) => Some(place.insert(Family::of(metric, &self.registry)?)),
        }
    }
}

impl Family {
    fn of(metric: &Metric, registry: &Registry) -> Option<Self> {
        let opts = Opts::new(metric.name, metric.help);
        match metric.kind {
            Kind::Counter => {
                let family = CounterVec::new(opts, metric.labels).ok()?;
                registry.register(Box::new(family.clone())).ok()?;
                Some(Family::Counter(family))
            }
            Kind::Gauge => {
                let family = GaugeVec::new(opts, metric.labels).ok()?;
                registry.register(Box::new(family.clone())).ok()?;
                Some(Family::Gauge(family))
            }
        }
    }
}

fn shortened(label: &str) -> &str {
    label.char_indices().nth(LABEL).map_or(label, |(end, _)| &label[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics;

    #[test]
    fn samples_beyond_the_limit_are_counted_and_left_out() {
        let mut page = Page::new(2);
        for device in ["eth0", "eth1", "eth2", "eth3"] {
            page.count(&metrics::DEVICE_PACKETS, &[device], 7);
        }
        assert_eq!(page.left_out(), 2);
        let text = String::from_utf8(page.text()).unwrap();
        assert!(
            text.contains("busypoll_device_receive_packets_total{device=\"eth1\"} 7"),
            "{text}"
        );
        assert!(!text.contains("eth2"), "{text}");
        page.reserve(1);
        page.count(&metrics::LEFT_OUT, &[], page.left_out());
        let text = String::from_utf8(page.text()).unwrap();
        assert!(text.contains("busypoll_exporter_left_out_samples_total 2"), "{text}");
    }

    /// A program chooses its name itself.
    #[test]
    fn values_of_labels_are_escaped_and_short() {
        let mut page = Page::new(9);
        let name = format!("a\"b\\c\nd{}", "é".repeat(100));
        page.count(&metrics::RUN_EMPTY, &["0", "1", &name], 1);
        let text = String::from_utf8(page.text()).unwrap();
        let sample = text.lines().find(|line| !line.starts_with('#')).unwrap();
        assert!(sample.contains(r#"program="a\"b\\c\nd"#), "{sample}");
        assert_eq!(sample.matches('é').count(), LABEL - 7, "{sample}");
    }

    #[test]
    fn every_metric_can_be_made() {
        let mut page = Page::new(metrics::ALL.len());
        for metric in metrics::ALL {
            let labels = vec!["x"; metric.labels.len()];
            page.count(metric, &labels, 1);
        }
        let text = String::from_utf8(page.text()).unwrap();
        assert_eq!(page.left_out(), 0);
        for metric in metrics::ALL {
            assert!(text.contains(&format!("# HELP {} {}\n", metric.name, metric.help)), "{text}");
        }
    }
}
