//! Arbitrary fragments, see `fragment_walk`. The fuzzer chooses better ones: `fuzz/run fragments`.

mod fragment_walk;

use proptest::prelude::*;

proptest! {
    #[test]
    fn arbitrary_fragments_harm_nothing(bytes in prop::collection::vec(any::<u8>(), 0..800)) {
        fragment_walk::walk(&bytes);
    }

    /// Steps that often complete a datagram: few datagrams, large pieces.
    #[test]
    fn overlapping_copies_and_late_fragments_harm_nothing(
        steps in prop::collection::vec((0u8..2, 0u8..16, 1u8..14, 0u8..3), 0..200)
    ) {
        let bytes: Vec<u8> =
            steps.iter().flat_map(|(which, offset, len, rest)| [which * 8, *offset, *len, *rest]).collect();
        fragment_walk::walk(&bytes);
    }
}
