//! The bytes that a terminal sends, as keys.

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Tab,
    BackTab,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    /// Ctrl-C or Ctrl-\.
    Interrupt,
    /// Ctrl-Z.
    Suspend,
    /// Ctrl-L.
    Redraw,
}

/// The keys in what was read at once. Sequences that are not known are skipped.
pub(crate) fn keys(bytes: &[u8]) -> Vec<Key> {
    let text = String::from_utf8_lossy(bytes);
    let mut chars = text.chars().peekable();
    let mut keys = Vec::new();
    while let Some(char) = chars.next() {
        keys.push(match char {
            '\x1b' => match chars.peek() {
                // CSI, or SS3 of a keypad.
                Some('[' | 'O') => {
                    chars.next();
                    let mut number = String::new();
                    let end = loop {
                        match chars.next() {
                            Some(char @ ('0'..='9' | ';')) => number.push(char),
                            end => break end,
                        }
                    };
                    match (end, number.as_str()) {
                        (Some('A'), _) => Key::Up,
                        (Some('B'), _) => Key::Down,
                        (Some('H'), _) | (Some('~'), "1" | "7") => Key::Home,
                        (Some('F'), _) | (Some('~'), "4" | "8") => Key::End,
                        (Some('Z'), _) => Key::BackTab,
                        (Some('~'), "5") => Key::PageUp,
                        (Some('~'), "6") => Key::PageDown,
                        _ => continue,
                    }
                }
                _ => Key::Escape,
            },
            '\r' | '\n' => Key::Enter,
            '\x7f' | '\x08' => Key::Backspace,
            '\t' => Key::Tab,
            '\x03' | '\x1c' => Key::Interrupt,
            '\x1a' => Key::Suspend,
            '\x0c' => Key::Redraw,
            char if char.is_control() => continue,
            char => Key::Char(char),
        });
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_terminals_send_is_read_and_the_rest_skipped() {
        let sent = b"q\x1b[A\x1bOB\x1b[5~\x1b[1;5C\x1b[Z\x7f\r\x03\x1a\x1b";
        assert_eq!(
            keys(sent),
            [
                Key::Char('q'),
                Key::Up,
                Key::Down,
                Key::PageUp,
                Key::BackTab,
                Key::Backspace,
                Key::Enter,
                Key::Interrupt,
                Key::Suspend,
                Key::Escape,
            ]
        );
        assert_eq!(keys("é\u{1}".as_bytes()), [Key::Char('é')]);
        assert_eq!(keys(b"\x1b[999"), []);
        assert_eq!(keys(b"\xff"), [Key::Char('\u{fffd}')]);
    }
}
