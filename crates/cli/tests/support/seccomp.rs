//! System calls that the kernel refuses a command, as some containers do.

use std::io;

/// Refuses this process and its children the call with this number, where arguments have these values (number of the
/// argument, value), with EPERM. For `pre_exec`.
pub fn refuse(call: libc::c_long, arguments: &[(u32, u32)]) -> io::Result<()> {
    let op = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let leave = libc::BPF_RET | libc::BPF_K;
    // struct seccomp_data: the call's number at 0, its arguments from 16 on.
    let compared = [(0, call as u32)].into_iter();
    let compared = compared.chain(arguments.iter().map(|(at, value)| (16 + 8 * at, *value)));
    let mut program = [op(leave, 0, 0, libc::SECCOMP_RET_ALLOW); 10];
    let last = 2 * (1 + arguments.len());
    assert!(last + 2 <= program.len());
    for (n, (at, value)) in compared.enumerate() {
        program[2 * n] = op(load, 0, 0, at);
        // To the last instruction, which allows it.
        program[2 * n + 1] = op(equal, 0, (last - 2 * n - 1) as u8, value);
    }
    program[last] = op(leave, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    let filter = libc::sock_fprog { len: last as u16 + 2, filter: program.as_mut_ptr() };
    // SAFETY: both calls take numbers, and the second a filter that outlives it.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter, 0, 0) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}
