//! The files of a set's members: activated before a wait, replaced in a child of fork(2).

use crate::stack::{
    common::lock,
    epoll_set::{EpollSet, Key},
    file::{FILES, Ref, fd_of_set},
    local_udp::KERNELS,
};
use busypoll_stack::time;
use std::{
    collections::{HashMap, HashSet},
    mem,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// How long a set whose members cannot be activated yet is not looked through again.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

impl EpollSet {
    /// In a child: `child_files` are its files, by the ids of the parent's files that they replace. A member without
    /// one is the kernel's.
    pub fn adopt_child_files(self: &Arc<EpollSet>, child_files: &HashMap<usize, Ref>) {
        let mut members = lock(&self.members);
        let of_parent = mem::take(&mut *members);
        let file = |id: &usize| child_files.get(id).filter(|file| !file.is_kernel_owned());
        let ids: HashSet<usize> = of_parent.keys().map(|key| key.0).collect();
        members.extend(of_parent.into_iter().filter_map(|((id, fd), member)| {
            file(&id).map(|file| ((file.memberships.id(), fd), member))
        }));
        self.inactive.store(members.len(), Ordering::Relaxed);
        drop(members);
        ids.iter().filter_map(file).for_each(|file| file.memberships.add(self));
    }

    /// Activates the members that can be, as a thread is about to wait for them.
    pub fn activate_members(self: &Arc<EpollSet>) {
        if self.inactive.load(Ordering::Relaxed) == 0 {
            return;
        }
        let until = self.look_again.load(Ordering::Relaxed);
        if until != 0 && time::now().nanos() < until {
            return;
        }
        let inactive: Vec<Key> = lock(&self.members)
            .iter()
            .filter(|(_, member)| member.half.is_inactive())
            .map(|(key, _)| *key)
            .collect();
        // Sockets that are the kernel's until another process asks for their datagrams.
        let mut can_wait = true;
        let count = inactive.len();
        for (id, fd) in inactive {
            let known = FILES.get(fd);
            // It is about to be replaced by the one that the member names.
            if known.as_ref().is_some_and(|file| file.is_kernel_owned() && file.live().is_some()) {
                continue;
            }
            let file = known.filter(|file| file.memberships().id() == id);
            if let Some(inner) = file.as_ref().and_then(|file| file.set()) {
                inner.activate_members();
                can_wait = false;
                continue;
            }
            let Some(file) = file.filter(|file| !file.is_kernel_owned()) else {
                // It has turned out to be the kernel's.
                if lock(&self.members).remove(&(id, fd)).is_some() {
                    self.inactive.fetch_sub(1, Ordering::Relaxed);
                }
                continue;
            };
            if let Some(live) = file.activate(fd) {
                self.activate_member(id, &live.socket().events(), fd_of_set);
            }
            can_wait &= file.live().is_none() && file.local_udp.is(KERNELS);
        }
        let until = if can_wait { (time::now() + LOOK_AGAIN).nanos() } else { 0 };
        let members = lock(&self.members);
        let is_same = members.values().filter(|it| it.half.is_inactive()).count() == count;
        self.look_again.store(if is_same { until } else { 0 }, Ordering::Relaxed);
        drop(members);
    }
}
