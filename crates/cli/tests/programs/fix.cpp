// A FIX session over QuickFIX: logs on, heartbeats, and sends orders that are each answered.
//
//   fix acceptor PORT
//   fix initiator PORT HOST ORDERS GAP_US [heartbeats]     prints "done ORDERS p50 US us" and logs out; with
//                                                          `heartbeats` only after both ends have sent one
//
// Each side waits as QuickFIX does, in select.
#include <quickfix/Application.h>
#include <quickfix/MessageStore.h>
#include <quickfix/Session.h>
#include <quickfix/SessionSettings.h>
#include <quickfix/SocketAcceptor.h>
#include <quickfix/SocketInitiator.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

using Clock = std::chrono::steady_clock;

class Side : public FIX::Application
{
public:
    std::mutex mutex;
    std::condition_variable changed;
    FIX::SessionID session;
    bool loggedOn = false;
    int answers = 0;
    bool sentHeartbeat = false, heardHeartbeat = false;
    // When the last answer arrived, written by the thread that received it.
    Clock::time_point arrived;
    bool acceptor;

    explicit Side(bool acceptor) : acceptor(acceptor) {}

    void onCreate(const FIX::SessionID &id) override { session = id; }
    void onLogon(const FIX::SessionID &) override { set([this] { loggedOn = true; }); }
    void onLogout(const FIX::SessionID &) override { set([this] { loggedOn = false; }); }
    void toAdmin(FIX::Message &message, const FIX::SessionID &) override
    {
        if (isHeartbeat(message))
            set([this] { sentHeartbeat = true; });
    }
    void toApp(FIX::Message &, const FIX::SessionID &) throw(FIX::DoNotSend) override {}
    void fromAdmin(const FIX::Message &message, const FIX::SessionID &) throw(
        FIX::FieldNotFound, FIX::IncorrectDataFormat, FIX::IncorrectTagValue, FIX::RejectLogon) override
    {
        if (isHeartbeat(message))
            set([this] { heardHeartbeat = true; });
    }

    void fromApp(const FIX::Message &message, const FIX::SessionID &id) throw(
        FIX::FieldNotFound, FIX::IncorrectDataFormat, FIX::IncorrectTagValue,
        FIX::UnsupportedMessageType) override
    {
        if (!acceptor) {
            auto now = Clock::now();
            int number = std::stoi(message.getField(11));
            set([this, number, now] { answers = number, arrived = now; });
            return;
        }
        FIX::Message report;
        report.getHeader().setField(FIX::MsgType("8"));
        for (int field : { 11, 38, 55 })
            report.setField(field, message.getField(field));
        report.setField(150, "2");
        FIX::Session::sendToTarget(report, id);
    }

    bool waitFor(const std::function<bool()> &what)
    {
        std::unique_lock<std::mutex> lock(mutex);
        return changed.wait_for(lock, std::chrono::seconds(20), what);
    }

private:
    static bool isHeartbeat(const FIX::Message &message) { return message.getHeader().getField(35) == "0"; }

    void set(const std::function<void()> &change)
    {
        std::lock_guard<std::mutex> lock(mutex);
        change();
        changed.notify_all();
    }
};

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    bool acceptor = std::string(argv[1]) == "acceptor";
    std::stringstream text;
    text << "[DEFAULT]\nConnectionType=" << argv[1] << "\nHeartBtInt=1\nReconnectInterval=1\n"
         << "StartTime=00:00:00\nEndTime=00:00:00\nUseDataDictionary=N\nSocketNodelay=Y\n"
         // Each run of the initiator starts with sequence number 1.
         << "ResetOnLogon=Y\n"
         << (acceptor ? "SocketAcceptPort=" : "SocketConnectPort=") << argv[2] << "\n"
         << (acceptor ? "" : "SocketConnectHost=") << (acceptor ? "" : argv[3]) << "\n"
         << "[SESSION]\nBeginString=FIX.4.2\nSenderCompID=" << (acceptor ? "SELL" : "BUY")
         << "\nTargetCompID=" << (acceptor ? "BUY" : "SELL") << "\n";
    FIX::SessionSettings settings(text);
    FIX::MemoryStoreFactory store;
    Side side(acceptor);
    if (acceptor) {
        FIX::SocketAcceptor server(side, store, settings);
        server.start();
        puts("ready");
        fflush(stdout);
        for (;;)
            pause();
    }
    FIX::SocketInitiator client(side, store, settings);
    client.start();
    if (!side.waitFor([&] { return side.loggedOn; }))
        return 1;
    int orders = atoi(argv[4]), gap = atoi(argv[5]);
    std::vector<double> took;
    for (int n = 1; n <= orders; n++) {
        FIX::Message order;
        order.getHeader().setField(FIX::MsgType("D"));
        order.setField(11, std::to_string(n));
        order.setField(38, "100");
        order.setField(55, "BUSY");
        auto began = Clock::now();
        FIX::Session::sendToTarget(order, side.session);
        if (!side.waitFor([&] { return side.answers == n; }))
            return 1;
        took.push_back(std::chrono::duration<double, std::micro>(side.arrived - began).count());
        if (gap)
            std::this_thread::sleep_for(std::chrono::microseconds(gap));
    }
    if (argc > 6 && !side.waitFor([&] { return side.sentHeartbeat && side.heardHeartbeat; }))
        return 1;
    std::sort(took.begin(), took.end());
    printf("done %d p50 %.1f us\n", orders, took[took.size() / 2]);
    client.stop();
    return side.waitFor([&] { return !side.loggedOn; }) ? 0 : 1;
}
