"""Whether what `busypoll advise` predicts comes true: each program is watched as it is, then really run under each
setting, in turns; the client's median round trip and the program's CPU time stand beside the prediction.

    busypoll lab -- python3 advise_check.py BUSYPOLL [PROGRAM...]

Prints a table in Markdown. PROGRAM: redis, memcached, nginx, sockperf, quickfix (the acceptor of fix.cpp, compiled here).
"""
import json, os, re, signal, socket, statistics, subprocess, sys, tempfile, threading, time

BUSYPOLL, WANTED = sys.argv[1], sys.argv[2:] or ["redis", "memcached", "nginx", "sockperf", "quickfix"]
HERE, PORT = "10.77.0.2", "7300"
ROUNDS, SECONDS, WATCH = int(os.environ.get("ROUNDS", "3")), float(os.environ.get("SECONDS", "1.5")), 3
NS = os.environ["BUSYPOLL_LAB_SERVER_NS"]
FOLDER = tempfile.mkdtemp()

NGINX = f"""daemon off; worker_processes 1; error_log /dev/null; pid {FOLDER}/pid;
events {{ }} http {{ access_log off; keepalive_requests 100000000; client_body_temp_path {FOLDER};
server {{ listen {HERE}:{PORT}; location / {{ return 200 "ok"; }} }} }}"""
SERVERS = {
    "redis": ["redis-server", "--save", "", "--port", PORT, "--bind", HERE, "--protected-mode", "no"],
    "memcached": ["memcached", "-u", "root", "-l", HERE, "-p", PORT, "-t", "1", "-U", "0"],
    "nginx": ["nginx", "-c", FOLDER + "/conf"],
    "sockperf": ["sockperf", "server", "-i", HERE, "-p", PORT],
    "quickfix": [FOLDER + "/fix", "acceptor", PORT],
}
SETTINGS = {
    "off": None,
    "kernel 50us": ["--busy-poll", "50us"],
    "kernel 200us": ["--busy-poll", "200us"],
    "kernel always": ["--busy-poll", "1s"],
    "stack 50us": ["--plane", "stack", "--dev", "lab-server", "--busy-poll", "50us"],
    "stack 200us": ["--plane", "stack", "--dev", "lab-server", "--busy-poll", "200us"],
    "stack always": ["--plane", "stack", "--dev", "lab-server", "--busy-poll", "1s"],
}


def asks(request, seconds):
    """A client that awaits each answer: its round trips in microseconds."""
    peer = socket.create_connection((HERE, int(PORT)))
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times, end = [], time.perf_counter() + seconds
    while True:
        sent = time.perf_counter()
        if sent > end:
            return times
        peer.sendall(request)
        peer.recv(4096)
        times.append((time.perf_counter() - sent) * 1e6)


REQUESTS = {"redis": b"GET key\r\n", "memcached": b"get key\r\n", "nginx": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"}


def load(name, seconds):
    """The median round trip of `seconds` of load, in microseconds."""
    if name == "quickfix":
        # An order is answered in 50 us to 200 us. The initiator prints its median at the end.
        words = [FOLDER + "/fix", "initiator", PORT, HERE, str(max(500, int(seconds * 5000))), "0"]
        said = subprocess.run(words, capture_output=True, text=True).stdout
        return float(re.search(r"p50 ([\d.]+) us", said).group(1))
    if name != "sockperf":
        return statistics.median(asks(REQUESTS[name], seconds))
    said = subprocess.run(
        ["sockperf", "ping-pong", "-i", HERE, "-p", PORT, "-t", str(max(1, round(seconds)))],
        capture_output=True, text=True).stdout
    return 2 * float(re.search(r"percentile 50\.000\s*=\s*([\d.]+)", said).group(1))


def family(pid):
    pids = [pid]
    for at in pids:
        try:
            children = open(f"/proc/{at}/task/{at}/children").read().split()
        except OSError:
            continue
        pids += [int(child) for child in children]
    return pids


def cpu(pid):
    ticks = 0
    for at in family(pid):
        try:
            fields = open(f"/proc/{at}/stat").read().rsplit(") ", 1)[1].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class Server:
    def __init__(self, name, options):
        words = SERVERS[name]
        if options is not None:
            words = [BUSYPOLL, "run", *options, "--", *words]
        self.child = subprocess.Popen(["nsenter", "--net=" + NS, *words], stdout=subprocess.DEVNULL, stderr=open(FOLDER + "/said", "a"))
        self.pid = self.child.pid
        for _ in range(200):
            time.sleep(0.05)
            if name in ("sockperf", "quickfix"):
                time.sleep(0.5)
                return
            try:
                socket.create_connection((HERE, int(PORT)), 1).close()
                return
            except OSError:
                pass
        raise SystemExit(f"{name} does not start: " + open(FOLDER + "/said").read())

    def end(self):
        self.child.send_signal(signal.SIGTERM)
        try:
            self.child.wait(5)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        time.sleep(0.3)


def advice(name):
    server = Server(name, None)
    traffic = threading.Thread(target=load, args=(name, WATCH + 2))
    traffic.start()
    time.sleep(0.3)
    said = subprocess.run([BUSYPOLL, "advise", "--json", "--time", f"{WATCH}s", str(server.pid)], capture_output=True, text=True)
    traffic.join()
    server.end()
    if said.returncode:
        raise SystemExit(said.stderr)
    return json.loads(said.stdout)


def measured(name, setting):
    server = Server(name, SETTINGS[setting])
    load(name, 0.3)
    before, begun = cpu(server.pid), time.perf_counter()
    took = load(name, SECONDS)
    used = (cpu(server.pid) - before) / (time.perf_counter() - begun)
    server.end()
    return took, used


os.sched_setaffinity(0, range(os.cpu_count()))
open(FOLDER + "/conf", "w").write(NGINX)
if "quickfix" in WANTED:
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fix.cpp")
    subprocess.run(["g++", "-std=c++14", "-O1", "-w", "-o", FOLDER + "/fix", source, "-lquickfix", "-pthread"], check=True)
for name in WANTED:
    told = advice(name)
    print(f"\n{name}: {told['waits']} waits in {told['call']}, wait {told['wait_us'][0]} us, work {told['work_us']} us, wake-up "
          f"{told['wake_up_us']} us; others used {told['cpus_of_others']} of {told['cpus']} CPUs; {json.dumps(told['costs'])}")
    for why in told["not_known"]:
        print("not known:", why)
    figures = {setting: [] for setting in SETTINGS}
    for nth in range(ROUNDS):
        for setting in (list(SETTINGS) if nth % 2 == 0 else reversed(SETTINGS)):
            figures[setting].append(measured(name, setting))
    print("\n| setting | round p50, predicted | measured | off by | CPU, predicted | measured | |\n|---|---|---|---|---|---|---|")
    for row in told["settings"]:
        took, used = [statistics.median(values) for values in zip(*figures[row["setting"]])]
        if row["round_p50_us"] is None:
            print(f"| {row['setting']} | - | {took:.1f} us | | - | {used:.0%} | |")
            continue
        off = row["round_p50_us"] / took - 1
        print(f"| {row['setting']} | {row['round_p50_us']:.1f} us | {took:.1f} us | {off:+.0%} | {row['cpu_share']:.0%} | {used:.0%} | "
              f"{'; '.join(row['not_known'])} |", flush=True)
