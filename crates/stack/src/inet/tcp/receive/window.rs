//! The receive window: how much the peer may send. Its right edge never moves left.

use super::super::seq::Seq;

#[derive(Debug)]
pub(super) struct Window {
    /// The furthest edge ever announced: after the last byte the peer may send.
    edge: Seq,
    /// How many bytes the buffer may hold.
    limit: u32,
    /// The most to announce, whatever the buffer holds.
    clamp: u32,
    /// Our window scale.
    shift: u8,
    /// The window of an empty buffer.
    full: u32,
}

//= RFC 7323 2.3
//# Thus, the shift count MUST be limited to 14 (which allows windows of 2^30 = 1 GiB).
/// The greatest shift.
pub(super) const MAX_SHIFT: u8 = 14;

/// The largest buffer: the largest window there can be.
const MOST: u32 = 1 << 30;

impl Window {
    /// The window as our SYN announced it, not scaled.
    pub(super) fn new(next: Seq, limit: u32, shift: u8) -> Window {
        let edge = next + u32::from(Window::initial(limit));
        let shift = shift.min(MAX_SHIFT);
        let mut window = Window { edge, limit, clamp: u32::MAX, shift, full: 0 };
        window.set_limit(limit);
        window
    }

    //= RFC 7323 2.2
    //# The window field in a segment where the SYN bit is set (i.e., a <SYN> or <SYN,ACK>) MUST NOT be scaled.
    /// What a SYN announces.
    pub(super) fn initial(limit: u32) -> u16 {
        limit.min(u16::MAX.into()) as u16
    }

    /// The smallest shift that can express a window of `most` bytes.
    pub(super) fn shift_for(most: u32) -> u8 {
        (0..MAX_SHIFT).find(|&shift| most <= u32::from(u16::MAX) << shift).unwrap_or(MAX_SHIFT)
    }

    #[inline]
    pub(super) fn edge(&self) -> Seq {
        self.edge
    }

    /// The unit of the field in the header. Bytes.
    #[inline]
    pub(super) fn unit(&self) -> u32 {
        1 << self.shift
    }

    #[inline]
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// A window once announced cannot be taken back: a smaller limit takes effect as the window is used up. It is
    /// never less than two units of the window scale, or nothing at all could be announced.
    #[inline]
    pub(super) fn set_limit(&mut self, limit: u32) {
        self.limit = limit.clamp(2 << self.shift, MOST);
        self.derive();
    }

    fn derive(&mut self) {
        self.full = self.limit.min(self.clamp).min(self.field()) & !(self.unit() - 1);
    }

    /// How far beyond the buffer's begin the edge may lie.
    #[inline]
    fn bound(&self) -> u32 {
        self.limit + (self.limit / 8).max(self.unit())
    }

    /// The most that the field can say.
    #[inline]
    fn field(&self) -> u32 {
        u32::from(u16::MAX) << self.shift
    }

    /// 0: no clamp.
    pub(super) fn set_clamp(&mut self, bytes: u32) {
        self.clamp = if bytes == 0 { u32::MAX } else { bytes.max(2 * self.unit()) };
        self.derive();
    }

    //= RFC 9293 3.8.6.2.2
    //# A TCP implementation MUST include a SWS avoidance algorithm in the receiver (MUST-39).
    //= RFC 9293 3.8.6.2.2
    //# The suggested SWS avoidance algorithm for the receiver is to keep RCV.NXT+RCV.WND fixed until the reduction
    //# satisfies: RCV.BUFF - RCV.USER - RCV.WND >= min( Fr * RCV.BUFF, Eff.snd.MSS )
    /// The least step by which the edge moves; Fr is 1/2.
    #[inline]
    fn step(&self, mss: u32) -> u32 {
        (self.limit.min(self.clamp) / 2).min(mss).max(1)
    }

    /// The window to announce with `next`, in whole units of 1 << shift. The buffer begins at `base`; `free` is the
    /// most it may take beyond `next`, however much the limit leaves.
    #[inline(always)]
    pub(super) fn offer(&self, base: Seq, next: Seq, mss: u32, free: u32) -> u32 {
        let open = (base + self.limit) - next;
        let new = open.min(free).min(self.clamp).min(self.field()) & !(self.unit() - 1);
        let is_within = |up| (next + up).at_most(base + self.bound());
        self.offer_of(self.edge - next, new, mss, is_within)
    }

    /// The same for an empty buffer, which begins at `next`, not after the edge.
    #[inline(always)]
    pub(super) fn offer_empty(&self, next: Seq, mss: u32) -> u32 {
        let left = next.distance(self.edge) as u32;
        self.offer_of(left, self.full, mss, |up| up <= self.bound())
    }

    /// `left` bytes are announced and not used, and the buffer has room for a window of `new` bytes. Whether the edge may
    /// lie so far from RCV.NXT, `is_within` says.
    #[inline(always)]
    fn offer_of(&self, left: u32, new: u32, mss: u32, is_within: impl Fn(u32) -> bool) -> u32 {
        if new > left && new - left >= self.step(mss) {
            return new;
        }
        //= RFC 9293 3.8.6
        //# A TCP receiver SHOULD NOT shrink the window, i.e., move the right window edge to the left (SHLD-14).
        // Rounded up, so that nothing announced is taken back. A peer that uses less than a unit each time would get
        // more and more this way, so this stops an eighth of the buffer beyond the limit. There the field says less
        // than was announced, by less than a unit, and what was announced is still accepted (`acceptable`).
        let below = self.unit() - 1;
        let up = left.saturating_add(below).min(self.field()) & !below;
        if up <= left || is_within(up) { up } else { left.min(up) & !below }
    }

    //= RFC 7323 2.4
    //# When window scaling is in effect, the receiver SHOULD track the actual maximum window sequence number
    /// `window` has been announced with `next`.
    #[inline]
    pub(super) fn announced(&mut self, next: Seq, window: u32) {
        self.edge = self.edge.max(next + window);
    }

    //= RFC 9293 3.10.7.4
    //# There are four cases for the acceptability test for an incoming segment:
    //= RFC 9293 3.10.7.4
    //# If the RCV.WND is zero, no segments will be acceptable, but special allowance should be made to accept valid
    //# ACKs, URGs, and RSTs.
    //= RFC 7323 2.4
    //# The receiver MUST honor, as in window, any segment that would have been in window for any <ACK> sent by the
    //# receiver.
    /// Whether a segment lies in the window. An empty segment may also lie on the edge: a peer that has used up the
    /// window sends its acknowledgments there.
    #[inline]
    pub(super) fn acceptable(&self, next: Seq, seq: Seq, len: u32) -> bool {
        if len == 0 {
            return next.at_most(seq) && seq.at_most(self.edge);
        }
        let end = seq + len;
        next.before(end) && seq.before(self.edge) && next != self.edge
    }
}
