//! Names that a user types: patterns, and the nearest known name to a mistyped one.

/// Shell-style match of a whole text with `*` and `?`. Linear, as only the last star is remembered.
///
/// ```
/// use busypoll_policy::text::glob;
/// assert!(glob(b"redis-*", b"redis-server"));
/// assert!(!glob(b"redis", b"redis-server"));
/// ```
#[must_use]
pub fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while let Some(&next) = text.get(t) {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == b'?' || c == next => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((star_p, star_t)) => {
                    p = star_p + 1;
                    t = star_t + 1;
                    star = Some((star_p, star_t + 1));
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(p).all(|&c| c == b'*')
}

/// The edit distance in bytes: how many must be inserted, removed, changed, or swapped with the next.
#[must_use]
pub fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    // Distances for prefixes of `b`, for the prefix of `a` so far, and for it without its last one and two bytes.
    let mut row: Vec<usize> = (0..=b.len()).collect();
    let (mut last, mut last_but_one) = (row.clone(), row.clone());
    for (i, ca) in a.iter().enumerate() {
        std::mem::swap(&mut last_but_one, &mut last);
        std::mem::swap(&mut last, &mut row);
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let changed = last[j] + usize::from(ca != cb);
            let mut best = changed.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *ca == b[j - 1] && a[i - 1] == *cb {
                best = best.min(last_but_one[j - 1] + 1);
            }
            row[j + 1] = best;
        }
    }
    row[b.len()]
}

/// The known name nearest to `name`, if it is near enough: less than half
/// of it differs, not counting underscores and case.
///
/// ```
/// use busypoll_policy::text::nearest;
/// assert_eq!(nearest("busypoll", ["busy_poll", "plane"]), Some("busy_poll"));
/// assert_eq!(nearest("colour", ["busy_poll", "plane"]), None);
/// ```
#[must_use]
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| text.replace(['_', '-'], "").to_lowercase();
    let name = plain(name);
    let far = |known: &&str| distance(&name, &plain(known));
    let best = known.into_iter().min_by_key(far)?;
    (far(&best) * 2 < name.len().max(best.len())).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_the_whole_text() {
        for (pattern, text, want) in [
            ("", "", true),
            ("*", "", true),
            ("?", "", false),
            ("a*c", "abbbc", true),
            ("a*c", "abbbcd", false),
            ("*b*d", "abcbd", true),
            ("a?c", "abc", true),
            ("abc", "ab", false),
            ("**", "x", true),
        ] {
            assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), want, "{pattern} {text}");
        }
    }

    #[test]
    fn distances() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", ""), 3);
        assert_eq!(distance("same", "same"), 0);
        assert_eq!((distance("plna", "plan"), distance("ab", "ba"), distance("", "")), (1, 1, 0));
        assert_eq!((distance("ca", "abc"), distance("a", "")), (3, 1));
    }

    #[test]
    fn only_a_near_name_is_suggested() {
        let known = ["busy_poll", "busy_poll_budget", "plane", "receive"];
        for (typed, want) in [
            ("busy-poll", Some("busy_poll")),
            ("bussy_pol", Some("busy_poll")),
            ("recieve", Some("receive")),
            ("Plane", Some("plane")),
            ("palne", Some("plane")),
            ("usecs", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, known), want, "{typed}");
        }
    }
}
