//! The table of what this library puts in front of the C library: the names, their signatures, and the handlers.
//! Everything else about a hook is generated from its row: the way to the real function ([`crate::real`]), and the
//! exported function ([`crate::hooks`]).
//!
//! A row reads
//!
//! ```text
//! name, alias: (arguments) -> result = handler, ours(descriptor) stack_handler;
//! ```
//!
//! `ours(fd) f`: where `fd` is a socket of the stack plane ([`crate::fds`]), `f(file, arguments...)` serves the call,
//! and is called again when a signal has interrupted it and it restarts ([`crate::inside::ERESTARTSYS`]). Otherwise
//! `handler(arguments...)` serves it; that is `real::name` where the kernel needs no help.
//!
//! `then f`: the handler does not return; after a panic in it `f(arguments...)` is called.
//!
//! `unless(argument) f`: where `f(argument)` is true, the real function is called at once, or the handler of a row with
//! `ours`.
//!
//! C's variadic functions are declared with as many machine words as the kernel could take: on the platforms of this
//! library integers and pointers are passed the same way in both forms.

/// Passes every row to the macro `expand`.
#[rustfmt::skip]
macro_rules! for_each_hook {
    ($expand:ident) => {
        use libc::{
            FILE, c_int, c_long, c_uint, c_void, epoll_event, fd_set, mmsghdr, msghdr, off_t, pollfd,
            sighandler_t, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
        };

        /// `char *const argv[]`.
        type Strings = *const *const libc::c_char;

        $expand! {
            // Sockets: creation and addresses.
            socket, __socket: (domain: c_int, kind: c_int, protocol: c_int) -> c_int = stack::socket;
            accept: (fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int = stack::accept_other,
                ours(fd) stack::accept;
            accept4: (fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int = stack::accept4_other,
                ours(fd) stack::accept4;
            bind: (fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int = kernel::bind,
                ours(fd) stack::bind;
            listen: (fd: c_int, backlog: c_int) -> c_int = real::listen,
                ours(fd) stack::listen;
            connect, __connect: (fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int = kernel::connect,
                ours(fd) stack::connect;
            shutdown: (fd: c_int, how: c_int) -> c_int = real::shutdown,
                ours(fd) stack::shutdown;
            getsockname: (fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int = real::getsockname,
                ours(fd) stack::getsockname;
            getpeername: (fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int = real::getpeername,
                ours(fd) stack::getpeername;
            getsockopt: (fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int
                = real::getsockopt,
                ours(fd) stack::getsockopt;
            setsockopt: (fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int
                = kernel::setsockopt,
                ours(fd) stack::setsockopt;

            // Receiving.
            read, __read: (fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t = kernel::read,
                ours(fd) stack::read;
            readv: (fd: c_int, iov: *const libc::iovec, count: c_int) -> ssize_t = kernel::readv,
                ours(fd) stack::readv;
            preadv2, preadv64v2: (fd: c_int, iov: *const libc::iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t
                = real::preadv2,
                ours(fd) stack::preadv2;
            recv, __recv: (fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t = kernel::recv,
                ours(fd) stack::recv;
            recvfrom: (
                fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t,
            ) -> ssize_t = kernel::recvfrom,
                ours(fd) stack::recvfrom;
            recvmsg: (fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t = stack::recvmsg_other,
                ours(fd) stack::recvmsg;
            recvmmsg: (fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int, timeout: *mut timespec) -> c_int
                = stack::recvmmsg_other,
                ours(fd) stack::recvmmsg;
            // The variants that `-D_FORTIFY_SOURCE` calls, with the size of the object behind the buffer.
            __read_chk: (fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t = kernel::__read_chk,
                ours(fd) stack::read_chk;
            __recv_chk: (fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t
                = kernel::__recv_chk,
                ours(fd) stack::recv_chk;
            __recvfrom_chk: (
                fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int,
                addr: *mut sockaddr, addr_len: *mut socklen_t,
            ) -> ssize_t = kernel::__recvfrom_chk,
                ours(fd) stack::recvfrom_chk;

            // Sending.
            write, __write: (fd: c_int, buf: *const c_void, len: size_t) -> ssize_t = real::write,
                ours(fd) stack::write;
            writev: (fd: c_int, iov: *const libc::iovec, count: c_int) -> ssize_t = real::writev,
                ours(fd) stack::writev;
            pwritev2, pwritev64v2: (fd: c_int, iov: *const libc::iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t
                = real::pwritev2,
                ours(fd) stack::pwritev2;
            send, __send: (fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t = real::send,
                ours(fd) stack::send;
            sendto: (
                fd: c_int, buf: *const c_void, len: size_t, flags: c_int, addr: *const sockaddr, addr_len: socklen_t,
            ) -> ssize_t = real::sendto,
                ours(fd) stack::sendto;
            sendmsg: (fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t = stack::sendmsg_other,
                ours(fd) stack::sendmsg;
            sendmmsg, __sendmmsg: (fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int) -> c_int
                = stack::sendmmsg_other,
                ours(fd) stack::sendmmsg;
            sendfile, sendfile64: (out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t
                = stack::sendfile_other,
                ours(from) stack::sendfile;
            splice: (
                from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, len: size_t, flags: u32,
            ) -> ssize_t = stack::splice_to_other,
                ours(from) stack::splice;

            // Waiting.
            poll, __poll: (fds: *mut pollfd, count: libc::nfds_t, timeout: c_int) -> c_int = stack::poll;
            ppoll: (fds: *mut pollfd, count: libc::nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int
                = stack::ppoll;
            __poll_chk: (fds: *mut pollfd, count: libc::nfds_t, timeout: c_int, room: size_t) -> c_int = stack::poll_chk;
            __ppoll_chk: (
                fds: *mut pollfd, count: libc::nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t,
            ) -> c_int = stack::ppoll_chk;
            select, __select: (
                count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval,
            ) -> c_int = stack::select;
            pselect: (
                count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
                timeout: *const timespec, mask: *const sigset_t,
            ) -> c_int = stack::pselect;
            epoll_create: (size: c_int) -> c_int = stack::epoll_create;
            epoll_create1: (flags: c_int) -> c_int = stack::epoll_create1;
            epoll_ctl: (epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int
                = stack::epoll_ctl_other, ours(epoll) stack::epoll_ctl, unless(epoll, fd) stack::is_kernel_member;
            epoll_wait: (epoll: c_int, events: *mut epoll_event, room: c_int, timeout: c_int) -> c_int
                = kernel::epoll_wait, ours(epoll) stack::epoll_wait;
            epoll_pwait: (
                epoll: c_int, events: *mut epoll_event, room: c_int, timeout: c_int, mask: *const sigset_t,
            ) -> c_int = kernel::epoll_pwait, ours(epoll) stack::epoll_pwait;
            epoll_pwait2: (
                epoll: c_int, events: *mut epoll_event, room: c_int, timeout: *const timespec, mask: *const sigset_t,
            ) -> c_int = kernel::epoll_pwait2, ours(epoll) stack::epoll_pwait2;

            // Rings of liburing; the C library has none.
            io_uring_queue_init: (entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int = stack::rings::queue_init;
            io_uring_queue_init_params: (entries: c_uint, ring: *mut c_void, params: *mut c_void) -> c_int
                = stack::rings::queue_init_params;
            io_uring_queue_init_mem: (
                entries: c_uint, ring: *mut c_void, params: *mut c_void, memory: *mut c_void, size: size_t,
            ) -> c_int = stack::rings::queue_init_mem;

            // Descriptors.
            eventfd: (initial: u32, flags: c_int) -> c_int = stack::eventfd;
            timerfd_create: (clock: c_int, flags: c_int) -> c_int = stack::timerfd_create;
            close, __close: (fd: c_int) -> c_int = stack::close_other,
                ours(fd) stack::close;
            close_range: (first: u32, last: u32, flags: c_int) -> c_int = stack::close_range;
            closefrom: (first: c_int) -> () = stack::closefrom;
            fclose: (stream: *mut FILE) -> c_int = stack::fclose;
            freopen: (path: *const libc::c_char, mode: *const libc::c_char, stream: *mut FILE) -> *mut FILE = stack::freopen;
            freopen64: (path: *const libc::c_char, mode: *const libc::c_char, stream: *mut FILE) -> *mut FILE
                = stack::freopen64;
            fdopen, _IO_fdopen: (fd: c_int, mode: *const libc::c_char) -> *mut FILE = real::fdopen,
                ours(fd) stack::fdopen;
            // A `va_list` is passed as a pointer. dprintf: `crate::hooks::variadic`.
            vdprintf: (fd: c_int, format: *const libc::c_char, arguments: *mut c_void) -> c_int = real::vdprintf,
                ours(fd) stack::vdprintf;
            __vdprintf_chk: (fd: c_int, flag: c_int, format: *const libc::c_char, arguments: *mut c_void) -> c_int
                = real::__vdprintf_chk,
                ours(fd) stack::vdprintf_chk;
            aio_read, aio_read64: (request: *mut c_void) -> c_int = stack::aio_read;
            aio_write, aio_write64: (request: *mut c_void) -> c_int = stack::aio_write;
            lio_listio, lio_listio64: (mode: c_int, requests: *const *mut c_void, count: c_int, event: *mut c_void) -> c_int
                = stack::lio_listio;
            // Of libaio; the C library has none.
            io_submit: (context: *mut c_void, count: c_long, requests: *const *mut c_void) -> c_int = stack::io_submit;
            dup: (fd: c_int) -> c_int = kernel::dup,
                ours(fd) stack::dup;
            dup2, __dup2: (fd: c_int, to: c_int) -> c_int = stack::dup2_other,
                ours(fd) stack::dup2;
            dup3: (fd: c_int, to: c_int, flags: c_int) -> c_int = stack::dup3_other,
                ours(fd) stack::dup3;
            fcntl, fcntl64, __fcntl: (fd: c_int, command: c_int, argument: usize) -> c_int = stack::fcntl_other,
                ours(fd) stack::fcntl;
            ioctl: (fd: c_int, request: libc::c_ulong, argument: usize) -> c_int = kernel::ioctl,
                ours(fd) stack::ioctl;
            sockatmark: (fd: c_int) -> c_int = real::sockatmark,
                ours(fd) stack::sockatmark;

            // Processes and signals.
            fork, __fork: () -> libc::pid_t = stack::fork;
            _Fork: () -> libc::pid_t = stack::raw_fork;
            // The child of the real one would change this library's memory under its parent.
            daemon: (nochdir: c_int, noclose: c_int) -> c_int = stack::daemon;
            vfork, __vfork: () -> libc::pid_t = stack::fork;
            _exit, _Exit: (status: c_int) -> c_int = stack::exit, then real::_exit;
            unshare: (flags: c_int) -> c_int = stack::unshare;
            setns: (fd: c_int, kinds: c_int) -> c_int = stack::setns;
            execv: (path: *const libc::c_char, argv: Strings) -> c_int = process::execv;
            execvp: (path: *const libc::c_char, argv: Strings) -> c_int = process::execvp;
            execve: (path: *const libc::c_char, argv: Strings, envp: Strings) -> c_int = process::execve;
            execvpe: (path: *const libc::c_char, argv: Strings, envp: Strings) -> c_int = process::execvpe;
            fexecve: (fd: c_int, argv: Strings, envp: Strings) -> c_int = process::fexecve;
            execveat: (dir: c_int, path: *const libc::c_char, argv: Strings, envp: Strings, flags: c_int) -> c_int
                = process::execveat;
            posix_spawn: (
                pid: *mut libc::pid_t, path: *const libc::c_char, actions: *const c_void, attributes: *const c_void,
                argv: Strings, envp: Strings,
            ) -> c_int = process::posix_spawn;
            posix_spawnp: (
                pid: *mut libc::pid_t, path: *const libc::c_char, actions: *const c_void, attributes: *const c_void,
                argv: Strings, envp: Strings,
            ) -> c_int = process::posix_spawnp;
            system: (command: *const libc::c_char) -> c_int = process::system;
            popen: (command: *const libc::c_char, mode: *const libc::c_char) -> *mut FILE = process::popen;
            posix_spawn_file_actions_adddup2: (actions: *mut c_void, fd: c_int, to: c_int) -> c_int
                = real::posix_spawn_file_actions_adddup2,
                ours(fd) stack::add_dup2;
            pthread_cancel: (thread: libc::pthread_t) -> c_int = cancel::pthread_cancel;
            sigaction, __sigaction: (signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int
                = signals::sigaction;
            signal, ssignal, bsd_signal: (number: c_int, handler: sighandler_t) -> sighandler_t = signals::signal;
            sysv_signal, __sysv_signal: (number: c_int, handler: sighandler_t) -> sighandler_t = signals::sysv_signal;
            sigset: (number: c_int, handler: sighandler_t) -> sighandler_t = signals::sigset;
            sigignore: (number: c_int) -> c_int = signals::sigignore;
            siginterrupt: (signal: c_int, flag: c_int) -> c_int = signals::siginterrupt;
            prctl: (option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int = kernel::prctl;
            syscall: (
                number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize,
            ) -> c_long = raw::syscall, unless(number) raw::bypasses_hooks;
        }
    };
}
