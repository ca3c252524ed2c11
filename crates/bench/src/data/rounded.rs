//! JSON for people, too: indented, and with figures of five digits, which is more than any measurement has.

use std::io::{self, Write};

use serde_json::ser::{Formatter, PrettyFormatter};

/// [`PrettyFormatter`] with rounded figures.
#[derive(Default)]
pub(super) struct Rounded(PrettyFormatter<'static>);

/// The nearest figure with five digits.
fn round(x: f64) -> f64 {
    format!("{x:.4e}").parse().unwrap_or(x)
}

impl Formatter for Rounded {
    fn write_f64<W: ?Sized + Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        self.0.write_f64(out, round(value))
    }

    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_array(out)
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array(out)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(out, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array_value(out)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object(out)
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object(out)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object_value(out)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object_value(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_five_digits() {
        for (x, wanted) in [
            (7.234_567_8, 7.2346),
            (0.098_765_43, 0.098_765),
            (123_456.7, 123_460.0),
            (40.0, 40.0),
            (0.0, 0.0),
            (-1.0 / 3.0, -0.333_33),
            (1e300, 1e300),
        ] {
            assert_eq!(round(x), wanted);
        }
    }
}
