//! The terminal: raw mode and the alternate screen while the view is shown, the signals that come meanwhile, and the
//! terminal as it was before on every end but SIGKILL: `q`, Ctrl-C, SIGTERM, SIGHUP, Ctrl-Z, a panic.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::panic;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use ratatui_core::backend::{Backend, ClearType, WindowSize};
use ratatui_core::buffer::Cell;
use ratatui_core::layout::{Position, Size};
use ratatui_core::style::Modifier;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::stdio::{stdin, stdout};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::Error;
use crate::keys::{Key, keys};

/// The alternate screen without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";

/// The size of a terminal that does not say its own.
const USUAL: Size = Size { width: 80, height: 24 };

/// The terminal's settings before the view, while it is shown.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// What has come.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Input {
    Keys(Vec<Key>),
    /// The terminal's size has changed, or the process was continued.
    Redraw,
    Suspend,
    End,
    /// The time is over.
    Time,
}

/// The signals that the view handles; they are blocked in this thread and those it starts later.
pub(crate) struct Signals(OwnedFd);

impl Signals {
    /// Blocks them.
    pub(crate) fn block() -> Result<Self, Error> {
        // SAFETY: plain calls on a set of our own.
        let fd = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in [
                libc::SIGINT,
                libc::SIGQUIT,
                libc::SIGTERM,
                libc::SIGHUP,
                libc::SIGTSTP,
                libc::SIGCONT,
                libc::SIGWINCH,
            ] {
                libc::sigaddset(&raw mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if fd < 0 {
            return Err(Error::Io("signalfd", io::Error::last_os_error()));
        }
        // SAFETY: a new descriptor, owned by nothing else.
        Ok(Signals(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn next(&self) -> Option<i32> {
        let mut bytes = [0; size_of::<libc::signalfd_siginfo>()];
        rustix::io::read(&self.0, &mut bytes).ok().filter(|read| *read == bytes.len())?;
        bytes.first_chunk().map(|signal| i32::from_ne_bytes(*signal))
    }

    /// Waits until then for a signal; with `keyboard` also for keys.
    pub(crate) fn wait(&self, until: Instant, keyboard: bool) -> Result<Input, Error> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let time = Timespec::try_from(left).unwrap_or_default();
            let mut fds = [
                PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN),
                // A log ends with its reader, a view with its terminal.
                match keyboard {
                    true => PollFd::from_borrowed_fd(stdin(), PollFlags::IN),
                    false => PollFd::from_borrowed_fd(stdout(), PollFlags::empty()),
                },
            ];
            match poll(&mut fds, Some(&time)) {
                Ok(0) => return Ok(Input::Time),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(Error::Io("poll", error.into())),
            }
            if fds[0].revents().contains(PollFlags::IN)
                && let Some(signal) = self.next()
            {
                return Ok(match signal {
                    libc::SIGTSTP => Input::Suspend,
                    libc::SIGWINCH | libc::SIGCONT => Input::Redraw,
                    _ => Input::End,
                });
            }
            let other = fds[1].revents();
            if other.contains(PollFlags::IN) {
                let mut bytes = [0; 256];
                return match rustix::io::read(stdin(), &mut bytes) {
                    Ok(0) => Ok(Input::End),
                    Ok(read) => Ok(Input::Keys(keys(&bytes[..read]))),
                    Err(Errno::INTR | Errno::AGAIN) => continue,
                    // The terminal has gone.
                    Err(_) => Ok(Input::End),
                };
            }
            if other.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
                return Ok(Input::End);
            }
        }
    }
}

/// The view's time on the terminal.
pub(crate) struct Shown;

impl Shown {
    /// Takes the terminal.
    pub(crate) fn begin() -> Result<Self, Error> {
        if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
            return Err(Error::NoTerminal);
        }
        let usual = panic::take_hook();
        let this = thread::current().id();
        panic::set_hook(Box::new(move |info| {
            // The message of another thread's panic would stand in the middle of the view.
            if thread::current().id() == this {
                leave();
                usual(info);
            }
        }));
        enter()?;
        Ok(Shown)
    }

    /// Gives the terminal back, stops the process until it is continued, and takes the terminal again.
    pub(crate) fn suspend(&self) -> Result<(), Error> {
        leave();
        // SIGTSTP is blocked here; a shell treats both alike.
        // SAFETY: a plain call.
        unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
        enter()
    }

    /// Takes the terminal again where the process was stopped from outside.
    pub(crate) fn again(&self) -> Result<(), Error> {
        enter()
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        leave();
    }
}

fn enter() -> Result<(), Error> {
    let failed = |error: Errno| Error::Io("the terminal", error.into());
    let before = tcgetattr(stdin()).map_err(failed)?;
    let mut raw = before.clone();
    raw.make_raw();
    if let Ok(mut kept) = BEFORE.lock() {
        kept.get_or_insert(before);
    }
    tcsetattr(stdin(), OptionalActions::Now, &raw).map_err(failed)?;
    write(ENTER.as_bytes())
}

/// Gives the terminal back, once.
fn leave() {
    let before = BEFORE.lock().ok().and_then(|mut kept| kept.take());
    if let Some(before) = before {
        // A terminal that is gone needs nothing.
        let _ = write(LEAVE.as_bytes());
        let _ = tcsetattr(stdin(), OptionalActions::Now, &before);
    }
}

fn write(bytes: &[u8]) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|e| Error::Io("the terminal", e))
}

/// What ratatui draws, as escape sequences that every terminal knows.
pub(crate) struct Ansi {
    text: String,
}

impl Ansi {
    pub(crate) fn new() -> Self {
        Ansi { text: String::new() }
    }
}

impl Backend for Ansi {
    type Error = io::Error;

    fn draw<'a, I>(&mut self, content: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let (mut at, mut style) = (None, Modifier::empty());
        for (x, y, cell) in content {
            if at != Some((x, y)) {
                let _ = write!(self.text, "\x1b[{};{}H", y + 1, x + 1);
            }
            if cell.modifier != style {
                style = cell.modifier;
                self.text.push_str("\x1b[0m");
                for (modifier, code) in
                    [(Modifier::BOLD, "\x1b[1m"), (Modifier::REVERSED, "\x1b[7m")]
                {
                    if style.contains(modifier) {
                        self.text.push_str(code);
                    }
                }
            }
            self.text.push_str(cell.symbol());
            at = Some((x + 1, y));
        }
        self.text.push_str("\x1b[0m");
        Ok(())
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        let _ = write!(self.text, "\x1b[{};{}H", y + 1, x + 1);
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        self.text.push_str("\x1b[2J");
        Ok(())
    }

    fn clear_region(&mut self, region: ClearType) -> io::Result<()> {
        self.text.push_str(match region {
            ClearType::All => "\x1b[2J",
            ClearType::AfterCursor => "\x1b[J",
            ClearType::BeforeCursor => "\x1b[1J",
            ClearType::CurrentLine => "\x1b[2K",
            ClearType::UntilNewLine => "\x1b[K",
        });
        Ok(())
    }

    fn size(&self) -> io::Result<Size> {
        let size = tcgetwinsize(stdout())?;
        let known = size.ws_col > 0 && size.ws_row > 0;
        Ok(if known { Size::new(size.ws_col, size.ws_row) } else { USUAL })
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size()?, pixels: Size::default() })
    }

    /// One write, so that the terminal does not flicker.
    fn flush(&mut self) -> io::Result<()> {
        let text = std::mem::take(&mut self.text);
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::process::{Command, Stdio};
    use std::{env, ptr};

    use super::*;

    const CHILD: &str = "BUSYPOLL_TEST_PANICS";

    /// In a process of its own: it takes the terminal and panics. Only the hook can give the terminal back.
    #[test]
    fn a_panic_gives_the_terminal_back_before_its_message() {
        if env::var_os(CHILD).is_some() {
            std::mem::forget(Shown::begin().unwrap());
            panic!("planted");
        }
        let (mut outer, mut inner) = (-1, -1);
        // SAFETY: both descriptors are written, and owned by nothing else.
        let (outer, inner) = unsafe {
            let none = ptr::null_mut();
            let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
            let made =
                libc::openpty(&raw mut outer, &raw mut inner, none, none.cast(), &raw const size);
            assert_eq!(made, 0);
            (OwnedFd::from_raw_fd(outer), OwnedFd::from_raw_fd(inner))
        };
        let before = tcgetattr(&inner).unwrap();
        let copy = || Stdio::from(inner.try_clone().unwrap());
        let name = "screen::tests::a_panic_gives_the_terminal_back_before_its_message";
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", name, "--nocapture"]).env(CHILD, "1");
        let mut child = command.stdin(copy()).stdout(copy()).stderr(copy()).spawn().unwrap();
        // What it writes fits into the terminal's buffer.
        assert!(!child.wait().unwrap().success());
        let after = tcgetattr(&inner).unwrap();
        assert_eq!(after.local_modes, before.local_modes);
        drop((inner, command));
        let (mut sent, mut bytes) = (String::new(), [0; 4096]);
        let mut outer = File::from(outer);
        // It reports an error once no process has the other end.
        while let Ok(read @ 1..) = outer.read(&mut bytes) {
            sent += &String::from_utf8_lossy(&bytes[..read]);
        }
        let at = |text: &str| sent.find(text).unwrap_or_else(|| panic!("no {text:?} in {sent}"));
        assert!(at("\x1b[?1049h") < at("\x1b[?1049l") && at("\x1b[?1049l") < at("planted"));
    }
}
