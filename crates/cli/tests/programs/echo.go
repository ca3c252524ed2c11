// Echoes TCP on the given port as Go's runtime does it: one epoll instance for all connections.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
)

func main() {
	listener, err := net.Listen("tcp4", "0.0.0.0:"+os.Args[1])
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	for {
		connection, err := listener.Accept()
		if err != nil {
			panic(err)
		}
		go func() {
			defer connection.Close()
			io.Copy(struct{ io.Writer }{connection}, struct{ io.Reader }{connection})
		}()
	}
}
