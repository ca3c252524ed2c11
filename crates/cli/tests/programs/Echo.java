import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;

/** Echoes TCP on the given port with one selector, as NIO servers do. */
public class Echo {
    public static void main(String[] arguments) throws Exception {
        Selector selector = Selector.open();
        ServerSocketChannel server = ServerSocketChannel.open();
        server.bind(new InetSocketAddress("0.0.0.0", Integer.parseInt(arguments[0])));
        server.configureBlocking(false);
        server.register(selector, SelectionKey.OP_ACCEPT);
        System.out.println("ready");
        ByteBuffer buffer = ByteBuffer.allocateDirect(4096);
        while (true) {
            selector.select();
            var keys = selector.selectedKeys().iterator();
            while (keys.hasNext()) {
                SelectionKey key = keys.next();
                keys.remove();
                if (key.isAcceptable()) {
                    SocketChannel connection = server.accept();
                    connection.configureBlocking(false);
                    connection.setOption(StandardSocketOptions.TCP_NODELAY, true);
                    connection.register(selector, SelectionKey.OP_READ);
                } else {
                    SocketChannel connection = (SocketChannel) key.channel();
                    buffer.clear();
                    if (connection.read(buffer) < 0) {
                        connection.close();
                        continue;
                    }
                    buffer.flip();
                    while (buffer.hasRemaining()) {
                        connection.write(buffer);
                    }
                }
            }
        }
    }
}
