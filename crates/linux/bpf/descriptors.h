/* The files of the present thread's descriptors. */
#pragma once
#include "kernel.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct fdtable {
    unsigned int max_fds;
    struct file **fd;
};
struct files_struct {
    struct fdtable *fdt;
};
struct task_struct___files {
    struct files_struct *files;
};
struct inode___mode {
    u16 i_mode;
};
#pragma clang attribute pop

enum { S_IFMT = 0xf000, S_IFSOCK = 0xc000 };

/* The file of a descriptor of this thread's, if it is a socket; else 0. */
INLINE struct file *socket_file(u32 fd) {
    struct task_struct___files *task = (void *)current_task();
    struct files_struct *files = 0;
    struct fdtable *table = 0;
    struct file **all = 0, *file = 0;
    struct inode___mode *inode = 0;
    u32 most = 0;
    u16 mode = 0;
    READ(files, task->files);
    READ(table, files->fdt);
    READ(most, table->max_fds);
    if (fd >= most)
        return 0;
    READ(all, table->fd);
    probe_read_kernel(&file, sizeof(file), all + fd);
    READ(inode, file->f_inode);
    READ(mode, inode->i_mode);
    return (mode & S_IFMT) == S_IFSOCK ? file : 0;
}
