//! Names a user types: patterns, and the nearest known one to a mistaken one.

/// Shell-style match of a whole text with `*` and `?`; linear, by remembering the last star only.
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

/// The Levenshtein distance in bytes: how many must be put in, taken out or changed.
#[must_use]
pub fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.bytes().enumerate() {
        let mut left = i + 1;
        let mut diagonal = i;
        for (cell, cb) in row.iter_mut().skip(1).zip(b.bytes()) {
            let cost = if ca == cb { diagonal } else { 1 + diagonal.min(*cell).min(left) };
            diagonal = std::mem::replace(cell, cost);
            left = cost;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

/// The known name nearest to `name`, where one is near enough to have been meant: less than half
/// of it differs, underscores and case not counted.
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
    }

    #[test]
    fn only_what_is_near_is_offered() {
        let known = ["busy_poll", "busy_poll_budget", "plane", "receive"];
        for (typed, want) in [
            ("busy-poll", Some("busy_poll")),
            ("bussy_pol", Some("busy_poll")),
            ("recieve", Some("receive")),
            ("Plane", Some("plane")),
            ("usecs", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, known), want, "{typed}");
        }
    }
}
